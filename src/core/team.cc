#include "core/team.h"

namespace twell {
namespace {

// What a processor does between two looks at memory that another one will write.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// Most waits are short, and to sleep and wake up takes longer. But the executor may have more
// threads than there are cores for them.
void TeamTasks::wait() {
  constexpr int kSpins = 1000;  // some 20 us
  const int before = barriers.load(std::memory_order_relaxed);
  if (waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
    waiting.store(0, std::memory_order_relaxed);
    for (auto& loop : next) loop.store(0, std::memory_order_relaxed);
    barriers.store(before + 1, std::memory_order_release);
    barriers.notify_all();
    return;
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (barriers.load(std::memory_order_acquire) != before) return;
    pause();
  }
  barriers.wait(before, std::memory_order_acquire);
}

}  // namespace twell
