#include "tokenizer/byte_level.h"

#include <charconv>

#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr char32_t kFirstOther = 0x100;
constexpr std::size_t kOthers = 68;

}  // namespace

const std::array<std::string, 256>& byte_symbols() {
  static const auto table = [] {
    std::array<std::string, 256> out;
    char32_t other = kFirstOther;
    for (unsigned byte = 0; byte < out.size(); ++byte) {
      append_utf8(out[byte], is_printable(byte) ? byte : other++);
    }
    return out;
  }();
  return table;
}

std::optional<std::string> bytes_from_symbols(std::string_view symbols) {
  static const auto others = [] {
    std::array<unsigned char, kOthers> out{};
    std::size_t next = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (!is_printable(byte)) out.at(next++) = static_cast<unsigned char>(byte);
    }
    return out;
  }();
  std::string out;
  for (std::size_t at = 0; at < symbols.size();) {
    const char32_t code = next_code(symbols, at);
    if (code < kFirstOther && is_printable(code)) {
      out += static_cast<char>(code);
    } else if (code >= kFirstOther && code < kFirstOther + kOthers) {
      out += static_cast<char>(others.at(code - kFirstOther));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<char> byte_of_name(std::string_view name) {
  if (name.size() != 6 || !name.starts_with("<0x") || !name.ends_with('>')) return std::nullopt;
  std::string_view digits = name.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);
  unsigned value = 0;
  const char* end = digits.data() + digits.size();
  if (std::from_chars(digits.data(), end, value, 16).ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

}  // namespace twell::io
