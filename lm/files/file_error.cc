#include "files/file_error.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace twell::io {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  if (text.size() > kLongest) {
    // Not in the middle of a UTF-8 sequence.
    while ((static_cast<unsigned char>(out.back()) & 0xC0U) == 0x80U) out.pop_back();
    if (static_cast<unsigned char>(out.back()) >= 0xC0U) out.pop_back();
    out += "...";
  }
  return out + "\"";
}

std::string in_brackets(const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kMost = 8;
  const auto shown = shape.begin() + static_cast<std::ptrdiff_t>(std::min(kMost, shape.size()));
  const std::string out = fmt::format("[{}", fmt::join(shape.begin(), shown, ", "));
  if (shape.size() <= kMost) return out + "]";
  return out + fmt::format(", ... {} dimensions]", shape.size());
}

std::string library_reason(std::string_view what) {
  if (const auto end = what.find("] "); what.starts_with("[json.exception.") && end != what.npos) {
    what.remove_prefix(end + 2);
  }
  return std::string(what.substr(0, what.find('\n')));
}

void refuse_lfs_pointer(std::string_view bytes, std::string_view file) {
  if (!bytes.starts_with("version https://git-lfs.")) return;
  fail_file(file, "is a pointer of Git LFS, not the file itself: fetch it with `git lfs pull`");
}

std::string system_reason(int error_number) {
  std::string reason = std::generic_category().message(error_number);
  if (error_number == ENOSPC || error_number == EDQUOT) reason += " (free some space and retry)";
  if (error_number == EFBIG) reason += " (a limit on file size, see `ulimit -f`)";
  return reason;
}

}  // namespace twell::io
