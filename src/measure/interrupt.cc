#include "measure/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

namespace twell::measure {
namespace {

volatile std::sig_atomic_t g_signals = 0;  // a signal handler can reach nothing else
volatile std::sig_atomic_t g_terminated = 0;
int g_pipe[2] = {-1, -1};

extern "C" void on_signal(int number) {
  g_signals = g_signals + 1;
  if (number == SIGTERM) g_terminated = 1;
  if (g_signals > 1) _exit(130);
  const int before = errno;
  [[maybe_unused]] const auto written = write(g_pipe[1], "", 1);
  errno = before;
}

}  // namespace

void install_interrupt_handler() {
  // Without one, waits are not woken, and all else is as it was.
  if (pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) g_pipe[0] = g_pipe[1] = -1;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A reader that goes away (`twell generate | head`) shows up as a failed write.
  std::signal(SIGPIPE, SIG_IGN);
  // So does a limit of file sizes (ulimit -f).
  std::signal(SIGXFSZ, SIG_IGN);
}

int interrupt_descriptor() noexcept { return g_pipe[0]; }

bool interrupted() noexcept { return g_signals != 0; }

void forget_interrupt() noexcept {
  if (g_terminated != 0) return;
  std::array<char, 16> bytes{};
  while (read(g_pipe[0], bytes.data(), bytes.size()) > 0) {
  }
  g_signals = 0;
}

void check_interrupt() {
  if (interrupted()) throw Interrupted{};
}

}  // namespace twell::measure
