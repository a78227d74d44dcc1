// The input is a tokenizer.json, then a zero byte, then a text for it. Whatever both are: a
// twell::Error or ids of the vocabulary, which decode to the same text whole and as a stream of
// whole characters.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using twell::io::StreamDecoder;
  using twell::io::Tokenizer;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = std::min(input.find('\0'), input.size());
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(input.substr(0, zero), "fuzz");
    const std::string text(zero < input.size() ? input.substr(zero + 1) : "ab <s> 12 the é\n  x");
    const auto ids = tokenizer.encode(text);
    StreamDecoder stream(tokenizer);
    std::string streamed;
    for (const auto id : ids) {
      if (!tokenizer.id_to_token(id)) std::abort();
      const std::string piece = stream.push(id);
      if (twell::io::find_invalid_utf8(piece) != std::string::npos) std::abort();
      streamed += piece;
    }
    if (streamed + stream.finish() != tokenizer.decode(ids)) std::abort();
  } catch (const twell::Error&) {
  }
  return 0;
}
