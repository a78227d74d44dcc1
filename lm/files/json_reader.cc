#include "files/json_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <unordered_set>

#include "files/file_error.h"

namespace twell::io {
namespace {

constexpr int kMaxDepth = 64;
constexpr std::string_view kNotNumbers[] = {"-Infinity", "Infinity", "NaN"};
// Marks the strings that they become; files have no reason to hold it.
constexpr char kMark = '\x7f';

std::string marked(std::string_view name) {
  return std::string("\"") + kMark + std::string(name) + "\"";
}

// Every NaN and Infinity outside of strings as a marked string.
std::string with_marked_numbers(std::string_view text) {
  std::string out;
  bool in_string = false;
  for (std::size_t at = 0; at < text.size();) {
    const auto rest = text.substr(at);
    const auto* name = std::ranges::find_if(
        kNotNumbers, [&](std::string_view n) { return !in_string && rest.starts_with(n); });
    if (name != std::end(kNotNumbers)) {
      out += marked(*name);
      at += name->size();
      continue;
    }
    if (rest[0] == '"') in_string = !in_string;
    const std::size_t length = in_string && rest[0] == '\\' && rest.size() > 1 ? 2 : 1;
    out += rest.substr(0, length);
    at += length;
  }
  return out;
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file, JsonVisitor visit) {
  std::array<std::unordered_set<std::string>, kMaxDepth + 1> keys;  // of the object at each depth
  const auto check = [&](int depth, JsonEvent event, Json& value) {
    if (depth > kMaxDepth) fail_file(file, "is nested more than {} levels deep", kMaxDepth);
    if (visit && !visit(depth, event, value)) return false;
    if (event == JsonEvent::object_start) keys.at(static_cast<std::size_t>(depth)) = {};
    if (event == JsonEvent::key &&
        !keys.at(static_cast<std::size_t>(depth - 1)).insert(value.get<std::string>()).second) {
      fail_file(file, "duplicate key {}", in_quotes(value.get_ref<const std::string&>()));
    }
    return true;
  };
  refuse_lfs_pointer(text, file);
  // The JSON library takes a zero byte for the end of its input.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    fail_file(file, "is not valid JSON at byte {}: a zero byte", zero);
  }
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::parse_error& error) {
    fail_file(file, "is not valid JSON at byte {}: truncated or damaged?", error.byte);
  } catch (const Json::exception&) {
    fail_file(file, "is not valid JSON: a number is too large");
  }
}

Json parse_python_json(std::string_view text, const std::string& file) {
  const bool plain = std::ranges::all_of(
      kNotNumbers, [&](std::string_view name) { return text.find(name) == text.npos; });
  return parse_json(plain ? std::string(text) : with_marked_numbers(text), file);
}

std::string python_json(const nlohmann::ordered_json& json) {
  std::string out = json.dump(2) + "\n";
  for (const std::string_view name : kNotNumbers) {
    const std::string from = marked(name);
    for (std::size_t at = 0; (at = out.find(from, at)) != out.npos; at += name.size()) {
      out.replace(at, from.size(), name);
    }
  }
  return out;
}

const char* kind_of(const Json& json) {
  constexpr std::array kKinds = {// in the order of Json::value_t
                                 "null",      "an object",         "an array", "a string",
                                 "a boolean", "a number",          "a number", "a fraction",
                                 "binary",    "an array or object"};
  static_assert(kKinds.size() == static_cast<std::size_t>(Json::value_t::discarded) + 1);
  return kKinds.at(static_cast<std::size_t>(json.type()));
}

JsonObject::JsonObject(const Json& json, const std::string& file, std::string path)
    : json_(&json), file_(&file), path_(std::move(path)) {
  if (!json.is_object()) {
    fail_file(file, "{} is {}, expected an object", path_.empty() ? "the document" : path_,
              kind_of(json));
  }
}

std::string JsonObject::path_of(const char* key) const {
  return path_.empty() ? key : path_ + "." + key;
}

bool JsonObject::has(const char* key) const {
  const auto found = json_->find(key);
  return found != json_->end() && !found->is_null();
}

const Json& JsonObject::value(const char* key) const {
  if (!has(key)) fail_file(*file_, "the key {} is missing", path_of(key));
  return *json_->find(key);
}

const Json& JsonObject::expect(const char* key, bool (Json::*is)() const,
                               const char* expected) const {
  const Json& json = value(key);
  if ((json.*is)()) return json;
  fail_file(*file_, "{} is {}, expected {}", path_of(key), kind_of(json), expected);
}

std::int64_t JsonObject::integer(const char* key, std::int64_t low, std::int64_t high,
                                 std::optional<std::int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const Json& json = expect(key, &Json::is_number_integer, "a whole number");
  const bool too_large = json.is_number_unsigned() &&
                         json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  if (too_large || json.get<std::int64_t>() < low || json.get<std::int64_t>() > high) {
    fail_file(*file_, "{} is {}, expected {} to {}", path_of(key), json.dump(), low, high);
  }
  return json.get<std::int64_t>();
}

double JsonObject::number(const char* key, double low, double high,
                          std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const Json& json = expect(key, &Json::is_number, "a number");
  const auto out = json.get<double>();
  if (!std::isfinite(out) || out < low || out > high) {
    fail_file(*file_, "{} is {}, expected {} to {}", path_of(key), out, low, high);
  }
  return out;
}

bool JsonObject::boolean(const char* key, std::optional<bool> fallback) const {
  if (fallback && !has(key)) return *fallback;
  return expect(key, &Json::is_boolean, "true or false").get<bool>();
}

std::string JsonObject::string(const char* key, std::optional<std::string> fallback) const {
  if (fallback && !has(key)) return *fallback;
  return expect(key, &Json::is_string, "a string").get<std::string>();
}

JsonObject JsonObject::object(const char* key) const { return {value(key), *file_, path_of(key)}; }

const Json::array_t& JsonObject::array(const char* key) const {
  return expect(key, &Json::is_array, "an array").get_ref<const Json::array_t&>();
}

std::vector<JsonObject> JsonObject::objects(const char* key) const {
  std::vector<JsonObject> out;
  for (const Json& element : array(key)) {
    out.emplace_back(element, *file_, fmt::format("{}[{}]", path_of(key), out.size()));
  }
  return out;
}

}  // namespace twell::io
