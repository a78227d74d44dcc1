// What a call runs on: the threads, the instruction tier and reusable scratch memory.
//
// A Context serves one call at a time. Two threads that call at the same time need two contexts.
// Nothing else in libtwell holds state.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "twell/device.h"
#include "twell/executor.h"

#pragma GCC visibility push(default)
namespace twell {

// What a Context is made from.
struct ContextOptions {
  int threads = 0;              // 0: default_threads()
  std::optional<CpuTier> tier;  // unset: default_cpu_tier()
  // For FfnPlan::hot_share. 0 multiplies every neuron that fires densely; 2 gathers all neurons.
  // Unset takes the share that is expected to be fastest.
  std::optional<double> hot_share = {};
  // Runs the tasks of calls on the caller's threads; unset: OpenMP runs them.
  std::optional<Executor> executor = {};
};

// Holds the threads, tier and scratch memory of calls.
class Context {
 public:
  // Throws Error{unsupported} if the forced tier is not available here, Error{invalid_argument} if
  // an executor has no function.
  explicit Context(const ContextOptions& options = {});
  ~Context();
  Context(Context&&) noexcept;
  Context& operator=(Context&&) noexcept;

  int threads() const { return threads_; }
  CpuTier tier() const { return tier_; }
  std::optional<double> hot_share() const { return hot_share_; }
  const std::optional<Executor>& executor() const { return executor_; }

  // Scratch of at least `bytes`, 64-byte aligned, for this thread and slot alone. Its contents are
  // undefined. It stays allocated for the next call. The context's own parallel regions may call
  // it.
  void* scratch(int thread, int slot, std::size_t bytes);
  static constexpr int kScratchSlots = 12;

 private:
  struct Arena;
  int threads_;
  CpuTier tier_;
  std::optional<double> hot_share_;
  std::optional<Executor> executor_;
  std::unique_ptr<Arena> arena_;
};

// The calling thread's own context, with so many threads and the tier that TWELL_CPU_TIER names
// now. It is remade when either changes, and goes with the thread. It is for callers that are told
// the number of threads in each call, as by PyTorch.
Context& thread_context(int threads);

}  // namespace twell
#pragma GCC visibility pop
