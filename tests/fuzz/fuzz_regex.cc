// A pattern, a zero byte, then a text: a twell::Error, or matches from left to right within the
// text that do not overlap.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  if (zero == std::string_view::npos) return 0;
  const std::string_view text = input.substr(zero + 1);
  if (text.size() > 300 || twell::io::find_invalid_utf8(text) != std::string_view::npos) return 0;
  try {
    std::size_t at = 0;
    for (const auto [begin, end] :
         twell::io::Regex(std::string(input.substr(0, zero)), "fuzz").find_all(text)) {
      if (begin < at || end < begin || end > text.size()) std::abort();
      at = end;
    }
  } catch (const twell::Error&) {
  }
  return 0;
}
