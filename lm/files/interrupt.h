// Ctrl-C and SIGTERM. The first one is noticed at the next step of the work, which unwinds and so
// removes its temporary files. Where no step comes within a second, as in one long call of a
// library, a thread that waits for signals ends the program. A second signal ends it at once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace twell::io {

struct Interrupted {};

// What that thread does. Both are called while the program's other threads run on.
struct InterruptActions {
  // Work that is to come to its end first goes on, once a signal: Unhurried says why.
  std::function<void(const std::string& why)> wait;
  // Ends the program, after what unfinished work has to say (LastWords); does not return.
  std::function<void(const std::function<void()>& last_words)> end;
};

class InterruptHandler {
 public:
  explicit InterruptHandler(InterruptActions actions);
  ~InterruptHandler();  // a program that is ending anyway is left alone
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;
};

// As long as it lives, a signal waits for the next look at interrupted(), however long that takes.
class Unhurried {
 public:
  enum class Of : std::uint8_t { all, ctrl_c };  // signals
  explicit Unhurried(std::string why, Of of = Of::all);
  ~Unhurried();
  Unhurried(const Unhurried&) = delete;
  Unhurried& operator=(const Unhurried&) = delete;
};

// What is told of unfinished work where a signal ends it, by unwinding or at once.
class LastWords {
 public:
  // `say` may be called on another thread, while the work goes on.
  explicit LastWords(std::function<void()> say);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  int exceptions_;
};

bool interrupted() noexcept;
// To wait for either with poll(): readable from the first signal on, whenever it comes.
int interrupt_descriptor() noexcept;
// Throws Interrupted after Ctrl-C or SIGTERM.
void check_interrupt();
// Work that was to stop has stopped, and the program goes on; not after SIGTERM.
void forget_interrupt() noexcept;

}  // namespace twell::io
