// tokenizer.ggml.token_type, and what stands for ids that a tokenizer does not have.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace twell::io {

inline constexpr std::int32_t kNormalToken = 1;
inline constexpr std::int32_t kUnknownToken = 2;
inline constexpr std::int32_t kControlToken = 3;
inline constexpr std::int32_t kUserDefinedToken = 4;  // looked for in a text, but not special
inline constexpr std::int32_t kUnusedToken = 5;
inline constexpr std::int32_t kByteToken = 6;

inline std::string placeholder_token(std::size_t id) { return fmt::format("[PAD{}]", id); }

}  // namespace twell::io
