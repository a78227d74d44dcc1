#include "files/interrupt.h"

#include <fcntl.h>
#include <semaphore.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace twell::io {
namespace {

using Clock = std::chrono::steady_clock;

// From a signal to the end of a program that does not notice it.
constexpr std::chrono::milliseconds kPatience{1000};
constexpr std::chrono::milliseconds kLook{20};

volatile std::sig_atomic_t g_signals = 0;  // a signal handler can reach nothing else
volatile std::sig_atomic_t g_terminated = 0;
int g_pipe[2] = {-1, -1};
sem_t g_woken;

extern "C" void on_signal(int number) {
  g_signals = g_signals + 1;
  if (number == SIGTERM) g_terminated = 1;
  if (g_signals > 1) _exit(130);
  const int before = errno;
  [[maybe_unused]] const auto written = write(g_pipe[1], "", 1);
  sem_post(&g_woken);
  errno = before;
}

// What the program's threads and the one that waits both see.
struct Shared {
  std::mutex mutex;
  InterruptActions actions;
  struct Patient {
    std::string why;
    Unhurried::Of of;
  };
  std::optional<Patient> patient;
  std::function<void()> last_words;
};
Shared& shared() {
  static auto* const one = new Shared;  // the waiting thread may outlive main()
  return *one;
}

// One look, after a signal: whether to look again.
bool look(Clock::time_point& since, bool& told) {
  Shared& s = shared();
  const std::lock_guard lock(s.mutex);
  if (g_signals == 0 || !s.actions.end) return false;
  const bool patient = s.patient && (s.patient->of == Unhurried::Of::all || g_terminated == 0);
  if (Clock::now() - since < kPatience) return true;
  if (!patient) s.actions.end(s.last_words);
  if (!std::exchange(told, true) && !s.patient->why.empty()) s.actions.wait(s.patient->why);
  since = Clock::now();  // what comes after it has its second, too
  return true;
}

void wait_for_signals() {
  while (true) {
    while (sem_wait(&g_woken) != 0) {
    }
    auto since = Clock::now();
    bool told = false;
    while (look(since, told)) std::this_thread::sleep_for(kLook);
  }
}

void start_waiting() {
  // Signals are for the other threads: they interrupt what waits for input.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(wait_for_signals).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

InterruptHandler::InterruptHandler(InterruptActions actions) {
  shared().actions = std::move(actions);
  // Without one, waits are not woken, and all else is as it was.
  if (pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) g_pipe[0] = g_pipe[1] = -1;
  sem_init(&g_woken, 0, 0);
  start_waiting();
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

InterruptHandler::~InterruptHandler() {
  const std::lock_guard lock(shared().mutex);
  shared().actions = {};
}

Unhurried::Unhurried(std::string why, Of of) {
  const std::lock_guard lock(shared().mutex);
  shared().patient = {std::move(why), of};
}

Unhurried::~Unhurried() {
  const std::lock_guard lock(shared().mutex);
  shared().patient.reset();
}

LastWords::LastWords(std::function<void()> say) : exceptions_(std::uncaught_exceptions()) {
  const std::lock_guard lock(shared().mutex);
  shared().last_words = std::move(say);
}

LastWords::~LastWords() {
  const std::lock_guard lock(shared().mutex);
  const auto say = std::exchange(shared().last_words, {});
  if (!interrupted() || std::uncaught_exceptions() <= exceptions_) return;
  try {
    say();
  } catch (const std::exception&) {  // the interrupt is told all the same
  }
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

}  // namespace twell::io
