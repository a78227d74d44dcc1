// An executor whose tasks are threads that it starts for each call, and that counts what it ran.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "twell/executor.h"

namespace twell::test {

class ThreadExecutor {
 public:
  ThreadExecutor() = default;
  ThreadExecutor(const ThreadExecutor&) = delete;
  ThreadExecutor& operator=(const ThreadExecutor&) = delete;

  // Lives as long as this does.
  Executor executor() { return {run, this}; }
  int calls() const { return calls_; }
  int tasks() const { return tasks_; }

 private:
  static void run(void* self, int tasks, void (*task)(void* data, int index), void* data) {
    auto* const executor = static_cast<ThreadExecutor*>(self);
    ++executor->calls_;
    executor->tasks_ += tasks;
    std::vector<std::thread> threads;
    for (int index = 1; index < tasks; ++index) threads.emplace_back(task, data, index);
    task(data, 0);
    for (std::thread& thread : threads) thread.join();
  }

  std::atomic<int> calls_ = 0, tasks_ = 0;
};

}  // namespace twell::test
