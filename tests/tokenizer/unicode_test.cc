#include "tokenizer/unicode.h"

#include "tests/support/files.h"
#include "tokenizer/byte_level.h"

namespace twell::io {
namespace {

std::string lossy(std::string bytes) {
  std::string out;
  take_utf8(bytes, out, true);
  return out;
}

TEST(Utf8, EveryCodePointThereAndBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, code);
    std::size_t at = 0;
    ASSERT_EQ(next_code(text, at), code);
    ASSERT_EQ(at, text.size());
    const std::string behind = std::string(1, 'a').append(text);
    ASSERT_EQ(previous_code(behind, behind.size()), code);
    ASSERT_EQ(find_invalid_utf8(text), std::string::npos);
    ASSERT_EQ(lossy(text), text);
    // A part of it alone is invalid, and one character in its place.
    for (std::size_t length = 1; length < text.size(); ++length) {
      ASSERT_EQ(find_invalid_utf8(behind.substr(0, length + 1)), 1U);
      ASSERT_EQ(lossy(text.substr(0, length) + "x"), "\xEF\xBF\xBDx");
    }
  }
}

// The examples of the Unicode standard, table 3-8 to 3-11: one U+FFFD for each maximal part.
TEST(Utf8, InvalidSequences) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(lossy("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(lossy("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(lossy("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(lossy("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Utf8, StreamsKeepWhatIsIncomplete) {
  const std::string text = "a\xE4\xB8\xAD\xF0\x9F\x98\x80z";
  std::string pending;
  std::string out;
  for (const char c : text) {
    pending += c;
    take_utf8(pending, out, false);
    ASSERT_EQ(find_invalid_utf8(out), std::string::npos);
    ASSERT_LT(pending.size(), 4U);
  }
  EXPECT_EQ(out, text);
  EXPECT_TRUE(pending.empty());
}

TEST(CodeClasses, SomeOfEach) {
  for (const char32_t code : U"azAZ\u00E9\u0416\u4E2D\U0001D400") {
    if (code != 0) {
      EXPECT_EQ(code_class(code), CodeClass::letter) << static_cast<int>(code);
    }
  }
  for (const char32_t code : {U'0', U'9', U'\u00B2', U'\u0660', U'\u2160'}) {
    EXPECT_EQ(code_class(code), CodeClass::number) << static_cast<int>(code);
  }
  for (const char32_t code : {U' ', U'\t', U'\u0085', U'\u00A0', U'\u3000', U'\u2028'}) {
    EXPECT_EQ(code_class(code), CodeClass::space) << static_cast<int>(code);
  }
  for (const char32_t code : {U'_', U'\u180E', U'\u200B', U'\u0301', U'\uFEFF', U'\U0010FFFF'}) {
    EXPECT_EQ(code_class(code), CodeClass::other) << static_cast<int>(code);
  }
}

TEST(ByteLevel, SymbolsThereAndBack) {
  std::string symbols;
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) {
    symbols += byte_symbols()[static_cast<std::size_t>(byte)];
    bytes += static_cast<char>(byte);
  }
  EXPECT_EQ(bytes_from_symbols(symbols), bytes);
  EXPECT_EQ(byte_symbols()[' '], "\u0120");
  EXPECT_EQ(byte_symbols()['\n'], "\u010A");
  EXPECT_EQ(bytes_from_symbols("a b"), std::nullopt);
  EXPECT_EQ(bytes_from_symbols("\u0144"), std::nullopt);
}

TEST(Nfc, Composes) {
  EXPECT_EQ(to_nfc(""), "");
  EXPECT_EQ(to_nfc("plain"), "plain");
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("xe\u0301e"), "x\u00E9e");
  EXPECT_EQ(to_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(to_nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(to_nfc("\u0301"), "\u0301");
  EXPECT_EQ(to_nfc("\uAC00\u11A7"), "\uAC00\u11A7");
  EXPECT_EQ(to_nfc(std::string("e\0\u0301e\u0301", 7)), std::string("e\0\u0301\u00E9", 6));
}

}  // namespace
}  // namespace twell::io
