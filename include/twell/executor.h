// Threads of the caller's for libtwell to run on, in place of OpenMP's: those of an inference
// engine, say, that has a pool of its own. ContextOptions::executor takes one.
#pragma once

#pragma GCC visibility push(default)
namespace twell {

// Runs the tasks of a call instead of OpenMP. run(self, tasks, task, data) calls task(data, 0) to
// task(data, tasks - 1), each once and all at the same time, on threads of their own: they wait for
// each other at barriers, so that a task which starts only when another one ends waits for ever.
// The caller's thread may be one of them. It returns when all have returned. Tasks throw nothing.
//
// A call of an operation runs a few such rounds, of Context::threads() tasks each, and none where
// that is 1. Two contexts may run at the same time, and so may then their executors' functions.
struct Executor {
  void (*run)(void* self, int tasks, void (*task)(void* data, int index), void* data) = nullptr;
  void* self = nullptr;  // the caller's, handed to run()
};

}  // namespace twell
#pragma GCC visibility pop
