#include "cli/terminal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace twell::cli {
namespace {

int g_output_error = 0;

}  // namespace

void hold_standard_streams() {
  for (int number = 0; number <= 2; ++number) {
    // For reading: what is written to it still fails.
    if (::fcntl(number, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  }
}

void put(std::FILE* out, std::string_view text) noexcept {
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
  if (written || out != stdout || g_output_error != 0) return;
  g_output_error = errno != 0 ? errno : EIO;
}

int output_error() noexcept { return g_output_error; }

bool shows_colour(std::FILE* out) {
  const char* const no = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  if (no != nullptr && *no != '\0') return false;
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return isatty(fileno(out)) != 0;
}

}  // namespace twell::cli
