// GGUF files written by hand, so that they can be wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

template <class T>
std::string raw(T value) {
  std::string out(sizeof value, '\0');
  std::memcpy(out.data(), &value, sizeof value);
  return out;
}
inline std::string raw_text(std::string_view text) {
  return raw<std::uint64_t>(text.size()) + std::string(text);
}

// Numbers of the types of values.
inline constexpr std::uint32_t kRawU32 = 4, kRawF32 = 6, kRawBool = 7, kRawString = 8,
                               kRawArray = 9, kRawI32 = 5, kRawU64 = 10;

struct RawGguf {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::vector<std::string> values;   // with their keys and types
  std::vector<std::string> tensors;  // their descriptions
  std::string data;
  std::uint64_t more_values = 0, more_tensors = 0;  // claimed beside those that are there

  void value(const std::string& key, std::uint32_t type, const std::string& bytes) {
    values.push_back(raw_text(key) + raw(type) + bytes);
  }
  void put(const std::string& key, std::uint32_t number) { value(key, kRawU32, raw(number)); }
  void put(const std::string& key, float number) { value(key, kRawF32, raw(number)); }
  void put(const std::string& key, std::string_view text) {
    value(key, kRawString, raw_text(text));
  }
  void put(const std::string& key, const std::vector<std::string>& texts) {
    std::string bytes = raw(kRawString) + raw<std::uint64_t>(texts.size());
    for (const std::string& text : texts) bytes += raw_text(text);
    value(key, kRawArray, bytes);
  }
  void put(const std::string& key, const std::vector<std::int32_t>& numbers) {
    std::string bytes = raw(kRawI32) + raw<std::uint64_t>(numbers.size());
    for (const std::int32_t number : numbers) bytes += raw(number);
    value(key, kRawArray, bytes);
  }
  // `sizes` as the file has them: columns first.
  void describe(const std::string& name, const std::vector<std::uint64_t>& sizes,
                std::uint32_t type, std::uint64_t offset) {
    std::string bytes = raw_text(name) + raw(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) bytes += raw(size);
    tensors.push_back(bytes + raw(type) + raw(offset));
  }
  // Of f32, behind the last one.
  void tensor(const std::string& name, const std::vector<std::uint64_t>& sizes,
              const std::vector<float>& numbers) {
    data.resize((data.size() + 31) / 32 * 32);
    describe(name, sizes, 0, data.size());
    data.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  }

  std::string file(std::size_t alignment = 32) const {
    std::string out = magic + raw(version) + raw<std::uint64_t>(tensors.size() + more_tensors) +
                      raw<std::uint64_t>(values.size() + more_values);
    for (const std::string& one : values) out += one;
    for (const std::string& one : tensors) out += one;
    if (!data.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    return out + data;
  }
};

}  // namespace twell::io
