// UTF-8, classes of code points and normalization. What is known of a character is of utf8proc's
// Unicode version; one assigned later is `other` and no mark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace twell::io {

// What the byte-level pre-tokenizer tells apart: the general categories L and N, and White_Space.
enum class CodeClass : std::uint8_t { other, letter, number, space };
CodeClass code_class(char32_t code);
bool is_word(char32_t code);  // for added tokens that stand alone

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

// Normalization form C, which the tokenizers of Qwen ask for, and form KC. `text` is valid UTF-8.
std::string to_nfc(std::string_view text);
std::string to_nfkc(std::string_view text);

}  // namespace twell::io
