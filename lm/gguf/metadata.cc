#include "gguf/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "files/file_error.h"
#include "files/note.h"

namespace twell::io {
namespace {

struct KindFacts {
  const char* name;
  std::size_t bytes;
};
constexpr std::array<KindFacts, 13> kKinds = {{
    {"a whole number", 1},
    {"a whole number", 1},
    {"a whole number", 2},
    {"a whole number", 2},
    {"a whole number", 4},
    {"a whole number", 4},
    {"a number", 4},
    {"true or false", 1},
    {"a string", 0},
    {"an array", 0},
    {"a whole number", 8},
    {"a whole number", 8},
    {"a number", 8},
}};

template <class T>
T value_at(const std::byte* from) {
  T out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

// None where it is no whole number, or larger than INT64_MAX.
std::optional<std::int64_t> whole_number(GgufKind kind, const std::byte* from) {
  switch (kind) {
    case GgufKind::u8:
      return value_at<std::uint8_t>(from);
    case GgufKind::i8:
      return value_at<std::int8_t>(from);
    case GgufKind::u16:
      return value_at<std::uint16_t>(from);
    case GgufKind::i16:
      return value_at<std::int16_t>(from);
    case GgufKind::u32:
      return value_at<std::uint32_t>(from);
    case GgufKind::i32:
      return value_at<std::int32_t>(from);
    case GgufKind::i64:
      return value_at<std::int64_t>(from);
    case GgufKind::u64: {
      const auto wide = value_at<std::uint64_t>(from);
      if (wide > static_cast<std::uint64_t>(INT64_MAX)) return {};
      return static_cast<std::int64_t>(wide);
    }
    default:
      return {};
  }
}

double as_it_was_written(float value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.begin(), text.end(), value).ptr;
  double out = 0;
  std::from_chars(text.begin(), end, out);
  return out;
}

}  // namespace

std::size_t size_of(GgufKind kind) { return kKinds.at(static_cast<std::size_t>(kind)).bytes; }

const GgufValue* GgufMetadata::find(const std::string& key, bool optional) const {
  const auto found = values_.find(key);
  if (found != values_.end()) return &found->second;
  if (optional) return nullptr;
  fail_file(file_, "the key {} is missing", key);
}

void GgufMetadata::fail_kind(const std::string& key, const GgufValue& value,
                             const char* expected) const {
  fail_file(file_, "{} is {}, expected {}", key,
            kKinds.at(static_cast<std::size_t>(value.kind)).name, expected);
}

std::int64_t GgufMetadata::integer(const std::string& key, std::int64_t low, std::int64_t high,
                                   std::optional<std::int64_t> fallback) const {
  const GgufValue* value = find(key, fallback.has_value());
  if (value == nullptr) return *fallback;
  const auto out = whole_number(value->kind, value->bytes.data());
  if (!out) fail_kind(key, *value, "a whole number");
  if (*out < low || *out > high) {
    fail_file(file_, "{} is {}, expected {} to {}", key, *out, low, high);
  }
  return *out;
}

std::optional<std::int64_t> GgufMetadata::token(const std::string& key, std::int64_t count) const {
  const GgufValue* value = find(key, true);
  const auto is_set = [](std::byte one) { return one == std::byte{0xff}; };
  if (value == nullptr) return {};
  if (value->bytes.size() >= 4 && value->bytes.size() == size_of(value->kind) &&
      std::ranges::all_of(value->bytes, is_set)) {
    return {};
  }
  const std::int64_t id = integer(key, INT64_MIN, INT64_MAX);
  if (id >= 0 && id < count) return id;
  note(fmt::format("{}: {} is {}, but there are {} tokens: it is left out", file_, key, id, count));
  return {};
}

double GgufMetadata::number(const std::string& key, double low, double high,
                            std::optional<double> fallback) const {
  const GgufValue* value = find(key, fallback.has_value());
  if (value == nullptr) return *fallback;
  if (value->kind != GgufKind::f32 && value->kind != GgufKind::f64) {
    fail_kind(key, *value, "a number");
  }
  const double out = value->kind == GgufKind::f32
                         ? as_it_was_written(value_at<float>(value->bytes.data()))
                         : value_at<double>(value->bytes.data());
  if (!(out >= low && out <= high)) {
    fail_file(file_, "{} is {}, expected {} to {}", key, out, low, high);
  }
  return out;
}

bool GgufMetadata::boolean(const std::string& key, std::optional<bool> fallback) const {
  const GgufValue* value = find(key, fallback.has_value());
  if (value == nullptr) return *fallback;
  if (value->kind != GgufKind::boolean) fail_kind(key, *value, "true or false");
  return value->bytes[0] != std::byte{0};
}

std::string_view GgufMetadata::string(const std::string& key,
                                      std::optional<std::string_view> fallback) const {
  const GgufValue* value = find(key, fallback.has_value());
  if (value == nullptr) return *fallback;
  if (value->kind != GgufKind::string) fail_kind(key, *value, "a string");
  return {reinterpret_cast<const char*>(value->bytes.data()), value->bytes.size()};
}

std::vector<std::string_view> GgufMetadata::strings(const std::string& key) const {
  const GgufValue* value = find(key, true);
  if (value == nullptr) return {};
  if (value->kind != GgufKind::array || value->element != GgufKind::string) {
    fail_kind(key, *value, "an array of strings");
  }
  std::vector<std::string_view> out;
  out.reserve(value->count);  // each takes eight bytes of the file
  const std::byte* at = value->bytes.data();
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto length = value_at<std::uint64_t>(at);
    at += sizeof length;
    out.emplace_back(reinterpret_cast<const char*>(at), length);
    at += length;
  }
  return out;
}

std::vector<std::int64_t> GgufMetadata::integers(const std::string& key) const {
  const GgufValue* value = find(key, true);
  if (value == nullptr) return {};
  std::vector<std::int64_t> out;
  for (std::uint64_t i = 0; value->kind == GgufKind::array && i < value->count; ++i) {
    const std::size_t bytes = size_of(value->element);
    const auto one =
        bytes == 0 ? std::nullopt : whole_number(value->element, value->bytes.data() + i * bytes);
    if (!one) fail_kind(key, *value, "an array of whole numbers");
    out.push_back(*one);
  }
  if (value->kind != GgufKind::array) fail_kind(key, *value, "an array of whole numbers");
  return out;
}

std::vector<float> GgufMetadata::floats(const std::string& key) const {
  const GgufValue* value = find(key, true);
  if (value == nullptr) return {};
  if (value->kind != GgufKind::array || value->element != GgufKind::f32) {
    fail_kind(key, *value, "an array of numbers");
  }
  std::vector<float> out(value->count);
  if (!out.empty()) std::memcpy(out.data(), value->bytes.data(), value->bytes.size());
  return out;
}

}  // namespace twell::io
