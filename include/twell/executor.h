// The caller's own threads for libtwell to run on, in place of OpenMP's: for example those of an
// inference engine with its own pool. ContextOptions::executor takes one.
#pragma once

#pragma GCC visibility push(default)
namespace twell {

// Runs the tasks of a call instead of OpenMP. run(self, tasks, task, data) calls task(data, 0) to
// task(data, tasks - 1), each once and all at the same time, each on its own thread: they wait for
// each other at barriers, so a task that starts only when another one ends would wait for ever. The
// calling thread may be one of them. It returns when all have returned. Tasks throw nothing.
//
// A call of an operation runs a few such rounds of Context::threads() tasks each, or none if that
// is 1. Two contexts may run at the same time, and then their executors' functions may too.
struct Executor {
  void (*run)(void* self, int tasks, void (*task)(void* data, int index), void* data) = nullptr;
  void* self = nullptr;  // the caller's, handed to run()
};

}  // namespace twell
#pragma GCC visibility pop
