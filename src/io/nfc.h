// Unicode normalization form C, which the tokenizers of Qwen ask for.
#pragma once

#include <string>
#include <string_view>

namespace twell::io {

// `text` is valid UTF-8. Identical to the normalizer NFC of the package `tokenizers`.
std::string to_nfc(std::string_view text);

}  // namespace twell::io
