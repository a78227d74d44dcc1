// Messages about files: one line, the file first, whatever a hostile file contains.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twell/status.h"

namespace twell::io {

// `text` in quotes with control characters escaped and at most 80 bytes of it, so that a name read
// from a file can neither break the line nor flood it.
std::string in_quotes(std::string_view text);

// "[2, 3]" of a shape, which a hostile file may give 200,000 dimensions: of more than eight, the
// first eight and their number.
std::string in_brackets(const std::vector<std::int64_t>& shape);

// What a library's exception says, on one line and without its own codes: nlohmann's begin with
// "[json.exception.type_error.302] ".
std::string library_reason(std::string_view what);

// Throws Error (environment) where the bytes are what Git LFS has in the place of a file that was
// not fetched.
void refuse_lfs_pointer(std::string_view bytes, std::string_view file);

// "No space left on device" and the like; for the common ones also what to do.
std::string system_reason(int error_number);

// The contents of a file, or the file itself, are at fault.
template <class... Args>
[[noreturn]] void fail_file(std::string_view file, fmt::format_string<Args...> format,
                            Args&&... args) {
  throw Error(ErrorKind::environment, file, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void fail_unsupported(std::string_view file, fmt::format_string<Args...> format,
                                   Args&&... args) {
  throw Error(ErrorKind::unsupported, file, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
[[noreturn]] void fail_argument(std::string_view operation, fmt::format_string<Args...> format,
                                Args&&... args) {
  throw Error(ErrorKind::invalid_argument, operation,
              fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace twell::io
