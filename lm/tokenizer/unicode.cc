#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <vector>

#include "files/file_error.h"

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

// A normalization form, with the first character that is not plain in it: composed already, and
// only the first of what it composes with. A plain character stays unless others follow.
struct Normalization {
  utf8proc_option_t options;
  char32_t first;
};
// The first combining mark is U+0300, and the first composite, U+00C0, is one character in form C.
constexpr Normalization kNfc{static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE),
                             0x300};
// The first character that stands for others is U+00A0.
constexpr Normalization kNfkc{
    static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT), 0xA0};

// U+11A7 belongs to no composition, but utf8proc before 2.11 takes it for a Hangul trailing
// consonant.
bool is_plain(char32_t code, const Normalization& form) {
  return code < form.first || code == 0x11A7;
}

// Marks in canonical order. utf8proc exchanges neighbours, which takes hours for a megabyte of
// them.
std::string in_order(std::string_view text) {
  const auto order = [](char32_t code) {
    return utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class;
  };
  std::vector<char32_t> codes;
  for (std::size_t at = 0; at < text.size();) codes.push_back(next_code(text, at));
  const auto is_starter = [&](char32_t code) { return order(code) == 0; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    const auto end = std::find_if(begin, codes.end(), is_starter);
    std::stable_sort(begin, end, [&](char32_t a, char32_t b) { return order(a) < order(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  std::string out;
  for (const char32_t code : codes) append_utf8(out, code);
  return out;
}

void append_composed(std::string& out, std::string_view text, const Normalization& form) {
  constexpr std::size_t kLong = 4096;
  const std::string ordered = text.size() > kLong ? in_order(text) : std::string();
  if (text.size() > kLong) text = ordered;
  utf8proc_uint8_t* composed = nullptr;
  const auto size =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &composed, form.options);
  if (size < 0) fail_argument("normalize", "{}", utf8proc_errmsg(size));
  out.append(composed, composed + size);
  std::free(composed);
}

std::string normalize(std::string_view text, const Normalization& form) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;   // what lies before it is in `out`
  std::size_t plain = 0;  // the last plain character
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    if (is_plain(next_code(text, end), form)) {
      plain = at;
      at = end;
      continue;
    }
    while (end < text.size()) {
      std::size_t next = end;
      if (is_plain(next_code(text, next), form)) break;
      end = next;
    }
    out.append(text, done, plain - done);
    append_composed(out, text.substr(plain, end - plain), form);
    done = plain = at = end;
  }
  out.append(text, done);
  return out;
}

}  // namespace

CodeClass code_class(char32_t code) {
  if (code < 0x80) {
    if ((code | 0x20) >= 'a' && (code | 0x20) <= 'z') return CodeClass::letter;
    if (code >= '0' && code <= '9') return CodeClass::number;
    return code == ' ' || (code >= '\t' && code <= '\r') ? CodeClass::space : CodeClass::other;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CodeClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CodeClass::number;
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return CodeClass::space;
    default:
      return code == 0x85 ? CodeClass::space : CodeClass::other;
  }
}

// Alphabetic, marks, decimal digits, connectors and joiners, as in \w of annex 18.
bool is_word(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    case UTF8PROC_CATEGORY_SO:  // of these, letters in circles and squares
      return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
             (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
    default:
      return code == 0x200C || code == 0x200D || code_class(code) == CodeClass::letter;
  }
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
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes.data());
  out.append(bytes.begin(), bytes.begin() + length);
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

std::string to_nfc(std::string_view text) { return normalize(text, kNfc); }
std::string to_nfkc(std::string_view text) { return normalize(text, kNfkc); }

}  // namespace twell::io
