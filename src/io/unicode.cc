#include "io/unicode.h"

#include <algorithm>

namespace twell::io {
namespace {

struct Sequence {
  std::size_t length = 0;   // bytes that belong together
  bool valid = false;       // a whole character
  bool incomplete = false;  // the text ends within a valid beginning
};

// Table 3-7 of the Unicode standard: the second byte is the only one with narrower limits.
Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  std::size_t length = 0;
  unsigned low = 0x80;
  unsigned high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {1, false, false};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i == text.size()) return {i, false, true};
    if (byte(i) < low || byte(i) > high) return {i, false, false};
    low = 0x80;
    high = 0xBF;
  }
  return {length, true, false};
}

}  // namespace

bool contains(std::span<const CodeRange> ranges, char32_t code) {
  const auto after =
      std::upper_bound(ranges.begin(), ranges.end(), code,
                       [](char32_t value, const CodeRange& range) { return value < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

bool is_space(char32_t code) {
  return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 ||
         code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
         code == 0x202F || code == 0x205F || code == 0x3000;
}

CodeClass code_class(char32_t code) {
  if (code < 0x80) {
    if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return CodeClass::letter;
    if (code >= '0' && code <= '9') return CodeClass::number;
    return is_space(code) ? CodeClass::space : CodeClass::other;
  }
  if (contains(kLetterRanges, code)) return CodeClass::letter;
  if (contains(kNumberRanges, code)) return CodeClass::number;
  return is_space(code) ? CodeClass::space : CodeClass::other;
}

bool is_numeric(char32_t code) {
  if (code < 0x80) return code >= '0' && code <= '9';
  return contains(kNumberRanges, code) || contains(kNewNumberRanges, code);
}

bool is_word(char32_t code) {
  return contains(kLetterRanges, code) || contains(kOtherWordRanges, code);
}

char32_t next_code(std::string_view text, std::size_t& at) {
  const auto byte = [&] { return static_cast<unsigned char>(text[at++]); };
  const char32_t lead = byte();
  if (lead < 0x80) return lead;
  const int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
  char32_t code = lead & (0x3FU >> more);
  for (int i = 0; i < more; ++i) code = (code << 6) | (byte() & 0x3FU);
  return code;
}

char32_t previous_code(std::string_view text, std::size_t at) {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  return next_code(text, at);
}

void append_utf8(std::string& out, char32_t code) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80U | ((code >> shift) & 0x3FU)); };
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xC0U | (code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out += static_cast<char>(0xE0U | (code >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0U | (code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.valid) return at;
    at += sequence.length;
  }
  return std::string_view::npos;
}

void take_utf8(std::string& bytes, std::string& out, bool last) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    const Sequence sequence = sequence_at(bytes, at);
    if (sequence.incomplete && !last) break;
    if (sequence.valid) {
      out.append(bytes, at, sequence.length);
    } else {
      out += "\xEF\xBF\xBD";  // U+FFFD
    }
    at += sequence.length;
  }
  bytes.erase(0, at);
}

}  // namespace twell::io
