#include "tokenizer/byte_level.h"

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

}  // namespace twell::io
