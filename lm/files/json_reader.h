// JSON from files that may be hostile: no duplicate keys, bounded depth, values with a type and a
// range, messages that name file and key.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

using Json = nlohmann::json;
using JsonEvent = Json::parse_event_t;

// Sees a document in pieces as it is parsed, and returns whether it keeps the piece: a key (with
// its value), a scalar, the start of an object or array (a `discarded` value), its end (all of it).
// `depth` counts the objects and arrays around it.
using JsonVisitor = std::function<bool(int depth, JsonEvent event, const Json& value)>;

// Throws Error (environment) on a syntax error, a duplicate key that is kept, or nesting beyond 64
// levels.
Json parse_json(std::string_view text, const std::string& file, JsonVisitor visit = {});

// As parse_json(), of a file that Python's json writes and reads: NaN, Infinity and -Infinity are
// values too. They become strings, so that no getter takes them for numbers; python_json() writes
// them as they were.
Json parse_python_json(std::string_view text, const std::string& file);

// One object of a document. Holds references: neither it nor its parts may outlive document and
// file name. Every getter throws Error (environment) naming file and key where the value has
// another type or is out of range; where it is absent or null, it gives the fallback or throws
// where there is none.
class JsonObject {
 public:
  // `path` is empty for the document itself, else "post_processor.special_tokens" and the like.
  JsonObject(const Json& json, const std::string& file, std::string path = "");

  bool has(const char* key) const;  // present and not null
  const Json& value(const char* key) const;
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {}) const;
  double number(const char* key, double low, double high,
                std::optional<double> fallback = {}) const;
  bool boolean(const char* key, std::optional<bool> fallback = {}) const;
  std::string string(const char* key, std::optional<std::string> fallback = {}) const;
  JsonObject object(const char* key) const;
  std::vector<JsonObject> objects(const char* key) const;  // an array of objects
  const Json::array_t& array(const char* key) const;

  const Json& json() const { return *json_; }
  const std::string& file() const { return *file_; }
  std::string path_of(const char* key) const;  // "rope_scaling.factor"

 private:
  const Json& expect(const char* key, bool (Json::*is)() const, const char* expected) const;

  const Json* json_;
  const std::string* file_;
  std::string path_;
};

// The text of a document that parse_python_json() read, two spaces for each level.
std::string python_json(const nlohmann::ordered_json& json);

// "a string", "an array", ...
const char* kind_of(const Json& json);

}  // namespace twell::io
