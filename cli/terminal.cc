#include "cli/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
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

bool knows_sequences(std::FILE* out) {
  const char* const name = std::getenv("TERM");
  const std::string_view terminal = name != nullptr ? name : "";
  return !terminal.empty() && terminal != "dumb" && isatty(fileno(out)) != 0;
}

bool shows_colour(std::FILE* out) {
  const char* const no = std::getenv("NO_COLOR");
  return (no == nullptr || *no == '\0') && knows_sequences(out);
}

int columns_of(std::FILE* out) {
  if (const char* const text = std::getenv("COLUMNS")) {
    const long columns = std::strtol(text, nullptr, 10);
    if (columns > 0 && columns < 10'000) return static_cast<int>(columns);
  }
  winsize size = {};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace twell::cli
