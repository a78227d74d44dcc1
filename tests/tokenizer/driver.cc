// Tokenizers as a program, so that the Python tests can compare them with `tokenizers`.
#include <utf8proc.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/records.h"
#include "tokenizer/regex.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

namespace {

using namespace twell::io;
using twell::test::answer;

std::string bytes_of(const std::vector<std::int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)};
}
std::vector<std::int32_t> ids_of(const std::string& bytes) {
  const auto* ids = reinterpret_cast<const std::int32_t*>(bytes.data());
  return {ids, ids + bytes.size() / sizeof(std::int32_t)};
}

bool run(const std::vector<std::string>& arguments) {
  const std::string& mode = arguments.at(0);
  if (mode == "encode" || mode == "encode-special") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    answer([&](const std::string& text) {
      return bytes_of(tokenizer.encode(text, mode == "encode-special"));
    });
  } else if (mode == "decode" || mode == "decode-skip") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    answer([&](const std::string& record) {
      return tokenizer.decode(ids_of(record), mode == "decode-skip");
    });
  } else if (mode == "stream") {
    const Tokenizer tokenizer = Tokenizer::load(arguments.at(1));
    answer([&](const std::string& record) {
      StreamDecoder decoder(tokenizer);
      std::string out;
      for (const std::int32_t id : ids_of(record)) {
        const std::string piece = decoder.push(id);
        if (find_invalid_utf8(piece) != std::string::npos)
          throw std::runtime_error("half a character");
        out += piece;
      }
      return out + decoder.finish();
    });
  } else if (mode == "nfc") {
    answer([](const std::string& text) { return to_nfc(text); });
  } else if (mode == "nfkc") {
    answer([](const std::string& text) { return to_nfkc(text); });
  } else if (mode == "assigned") {
    // Of a text, the characters that are assigned in the Unicode versions of both PCRE2 and
    // utf8proc.
    const Regex assigned(R"(\P{Cn})", "");
    answer([&](const std::string& text) {
      std::string out;
      for (const Span& span : assigned.find_all(text)) {
        std::size_t at = span.begin;
        const auto code = static_cast<utf8proc_int32_t>(next_code(text, at));
        if (utf8proc_category(code) != UTF8PROC_CATEGORY_CN)
          out.append(text, span.begin, at - span.begin);
      }
      return out;
    });
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) { return twell::test::run_driver(argc, argv, run); }
