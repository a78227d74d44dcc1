// UTF-8 and classes of code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace twell::io {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// Ascending; see unicode_tables.cc for their versions.
extern const std::span<const CodeRange> kLetterRanges;
extern const std::span<const CodeRange> kNumberRanges;
extern const std::span<const CodeRange> kNewNumberRanges;
extern const std::span<const CodeRange> kOtherWordRanges;

bool contains(std::span<const CodeRange> ranges, char32_t code);

// What the byte-level pre-tokenizer tells apart.
enum class CodeClass : std::uint8_t { other, letter, number, space };
CodeClass code_class(char32_t code);
bool is_space(char32_t code);    // the property White_Space; not U+180E
bool is_numeric(char32_t code);  // for the pre-tokenizer Digits
bool is_word(char32_t code);     // for added tokens that stand alone

// The code point that begins at `at`, which advances behind it. `text` is valid UTF-8.
char32_t next_code(std::string_view text, std::size_t& at);
// The code point that ends before `at`. at > 0.
char32_t previous_code(std::string_view text, std::size_t at);
void append_utf8(std::string& out, char32_t code);

// Of the first byte that belongs to no valid sequence; npos where all are valid.
std::size_t find_invalid_utf8(std::string_view text);

// Moves whole characters from the front of `bytes` to `out`; what can never become valid turns
// into U+FFFD, one for each maximal part of a sequence, as the Unicode standard recommends.
// An incomplete sequence at the end stays unless `last`.
void take_utf8(std::string& bytes, std::string& out, bool last);

}  // namespace twell::io
