// The metadata of a GGUF file: values with names, as they lie in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

// In the order of their numbers in files.
enum class GgufKind : std::uint8_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64,
};
std::size_t size_of(GgufKind kind);  // bytes; 0 of strings and arrays, whose lengths differ

struct GgufValue {
  GgufKind kind = GgufKind::u8;
  GgufKind element = GgufKind::u8;   // of an array
  std::uint64_t count = 1;           // elements of an array
  std::span<const std::byte> bytes;  // in the file; of an array the elements alone
};

// Refers to a file's name and bytes, which outlive it. Every getter throws Error (environment)
// naming file and key where the value has another type or is out of range. Where it is absent, a
// getter gives the fallback, or throws where there is none.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string file) : file_(std::move(file)) {}

  // False where the key is there already.
  bool add(const std::string& key, const GgufValue& value) {
    return values_.emplace(key, value).second;
  }
  const std::map<std::string, GgufValue>& values() const { return values_; }
  const std::string& file() const { return file_; }

  bool has(const std::string& key) const { return values_.contains(key); }
  // A whole number of any width.
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high,
                       std::optional<std::int64_t> fallback = {}) const;
  // The id of one of so many tokens. None where it is absent or says none (-1, which is the largest
  // number of a type without a sign), and, with a note, where there is no such token.
  std::optional<std::int64_t> token(const std::string& key, std::int64_t count) const;
  // f32 or f64. One of f32 is the shortest decimal number that is rounded to it: what was written
  // from 1e-5 is 1e-5.
  double number(const std::string& key, double low, double high,
                std::optional<double> fallback = {}) const;
  bool boolean(const std::string& key, std::optional<bool> fallback = {}) const;
  std::string_view string(const std::string& key,
                          std::optional<std::string_view> fallback = {}) const;
  // Arrays; empty where absent.
  std::vector<std::string_view> strings(const std::string& key) const;
  std::vector<std::int64_t> integers(const std::string& key) const;
  std::vector<float> floats(const std::string& key) const;

 private:
  const GgufValue* find(const std::string& key, bool optional) const;
  [[noreturn]] void fail_kind(const std::string& key, const GgufValue& value,
                              const char* expected) const;

  std::string file_;
  std::map<std::string, GgufValue> values_;
};

}  // namespace twell::io
