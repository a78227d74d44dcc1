// The threads of a parallel region, OpenMP's or those of a Context's executor, and how they share
// loops out. Static loops give each thread the same indices with either; no result may depend on
// which thread runs an index of a dynamic one.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "twell/context.h"

namespace twell {

// What the tasks of an executor share in a region.
struct TeamTasks {
  // Dynamic loops that may run without a barrier between them: each has a counter of its own.
  static constexpr int kLoops = 4;

  int count;
  std::atomic<int> waiting = 0;
  std::atomic<int> barriers = 0;                // that all have passed
  std::atomic<std::int64_t> next[kLoops] = {};  // indices of loops; zero after a barrier

  // Returns when all have called it.
  void wait();
};

// One thread's view of its region. All threads of it call the same functions in the same order.
class Team {
 public:
  // A thread alone, which starts nothing.
  Team() = default;
  // OpenMP may grant fewer threads than were asked for.
  static Team of_openmp() { return {omp_get_thread_num(), omp_get_num_threads(), nullptr}; }
  static Team of_executor(int thread, TeamTasks& tasks) { return {thread, tasks.count, &tasks}; }

  int thread() const { return thread_; }
  int threads() const { return threads_; }

  void barrier() {
    if (tasks_ != nullptr) {
      tasks_->wait();
      loops_ = 0;
    } else if (threads_ > 1) {
#pragma omp barrier
    }
  }
  // f() on one thread; ends with a barrier.
  template <class F>
  void single(const F& f) {
    if (by_openmp()) {
#pragma omp single
      f();
    } else {
      if (thread_ == 0) f();
      barrier();
    }
  }

  // Loops of f(i) for i < n. Each ends with a barrier, unless its name says otherwise.

  // A stretch of indices for each thread, as with OpenMP's schedule(static).
  template <class F>
  void for_static_nowait(std::int64_t n, const F& f) const {
    const std::int64_t share = n / threads_, more = n % threads_;
    const std::int64_t begin = thread_ * share + std::min<std::int64_t>(thread_, more);
    const std::int64_t end = begin + share + (thread_ < more ? 1 : 0);
    for (std::int64_t i = begin; i < end; ++i) f(i);
  }
  template <class F>
  void for_static(std::int64_t n, const F& f) {
    for_static_nowait(n, f);
    barrier();
  }
  // In turns, as with schedule(static, 1).
  template <class F>
  void for_static_chunk1(std::int64_t n, const F& f) {
    for (std::int64_t i = thread_; i < n; i += threads_) f(i);
    barrier();
  }
  // `chunk` indices to whoever asks next, as with schedule(dynamic, chunk).
  template <class F>
  void for_dynamic_nowait(std::int64_t n, std::int64_t chunk, const F& f) {
    if (by_openmp()) {
#pragma omp for schedule(dynamic, chunk) nowait
      for (std::int64_t i = 0; i < n; ++i) f(i);
      return;
    }
    if (tasks_ != nullptr && loops_ == TeamTasks::kLoops) barrier();
    std::atomic<std::int64_t> alone = 0;
    std::atomic<std::int64_t>& next = tasks_ != nullptr ? tasks_->next[loops_++] : alone;
    for (std::int64_t begin = 0; (begin = next.fetch_add(chunk, std::memory_order_relaxed)) < n;) {
      for (std::int64_t i = begin; i < std::min(begin + chunk, n); ++i) f(i);
    }
  }
  template <class F>
  void for_dynamic(std::int64_t n, std::int64_t chunk, const F& f) {
    for_dynamic_nowait(n, chunk, f);
    barrier();
  }

 private:
  Team(int thread, int threads, TeamTasks* tasks)
      : thread_(thread), threads_(threads), tasks_(tasks) {}

  // Not of a thread alone: its loops would be taken for those of a region that it is called from.
  bool by_openmp() const { return tasks_ == nullptr && threads_ > 1; }

  int thread_ = 0, threads_ = 1;
  TeamTasks* tasks_ = nullptr;  // of an executor
  int loops_ = 0;               // dynamic ones since the last barrier, with tasks
};

// Threads of a context; null: those that OpenMP takes by itself.
inline int threads_of(const Context* context) {
  return context != nullptr ? context->threads() : omp_get_max_threads();
}

// f(Team&) on each of them. f throws nothing.
template <class F>
void parallel(const Context* context, const F& f) {
  const int threads = threads_of(context);
  if (threads == 1) {
    Team alone;
    f(alone);
  } else if (context != nullptr && context->executor()) {
    struct Region {
      const F& f;
      TeamTasks tasks;
    } region{f, {threads}};
    const auto task = [](void* data, int index) noexcept {
      auto* const region = static_cast<Region*>(data);
      Team team = Team::of_executor(index, region->tasks);
      region->f(team);
    };
    context->executor()->run(context->executor()->self, threads, task, &region);
  } else {
#pragma omp parallel num_threads(threads)
    {
      Team team = Team::of_openmp();
      f(team);
    }
  }
}
template <class F>
void parallel(const Context& context, const F& f) {
  parallel(&context, f);
}

// f(i) for i < n, a stretch of indices for each thread. `context`: as parallel() takes it.
template <class C, class F>
void parallel_for(const C& context, std::int64_t n, const F& f) {
  parallel(context, [&](Team& team) { team.for_static_nowait(n, f); });
}

}  // namespace twell
