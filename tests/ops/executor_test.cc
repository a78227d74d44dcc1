// Operations on threads of the caller's: the bits are those of OpenMP with as many.
#include <omp.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/ops/every_operation.h"
#include "tests/support/thread_executor.h"

namespace twell {
namespace {

using test::Bytes;
using test::every_operation;
using test::Inputs;
using test::ThreadExecutor;

template <class T>
class ExecutorTest : public ::testing::Test {};
using Types = ::testing::Types<bf16, float>;
TYPED_TEST_SUITE(ExecutorTest, Types);

TYPED_TEST(ExecutorTest, ItsBitsAreOpenMPs) {
  for (const std::int64_t tokens : {1, 7, 300}) {
    const Inputs<TypeParam> in(tokens);
    for (const CpuTier tier : available_cpu_tiers()) {
      for (const int threads : {1, 2, 3, 5}) {
        SCOPED_TRACE(std::string(name_of(tier)) + ", " + std::to_string(tokens) + " rows, " +
                     std::to_string(threads) + " threads");
        ThreadExecutor own;
        const Bytes got =
            every_operation({.threads = threads, .tier = tier, .executor = own.executor()}, in);
        EXPECT_TRUE(got == every_operation({.threads = threads, .tier = tier}, in));
        EXPECT_EQ(own.calls() > 0, threads > 1);
        EXPECT_EQ(own.tasks(), threads > 1 ? own.calls() * threads : 0);
      }
    }
  }
}

// Two contexts, each on a thread of the caller's, ask the same executor.
TYPED_TEST(ExecutorTest, TwoCallersAtOnce) {
  const Inputs<TypeParam> in(64);
  ThreadExecutor own;
  const ContextOptions options = {.threads = 3, .tier = {}, .executor = own.executor()};
  const Bytes wanted = every_operation(options, in);
  const int calls = own.calls();
  Bytes got[2];
  const auto call = [&](Bytes& to) { to = every_operation(options, in); };
  std::thread other(call, std::ref(got[0]));
  call(got[1]);
  other.join();
  for (const Bytes& bytes : got) EXPECT_TRUE(bytes == wanted);
  EXPECT_EQ(own.calls(), 3 * calls);
}

// Threads of the process, once their number has stayed the same for a while: one that has ended may
// still be listed.
std::int64_t threads_now() {
  std::int64_t count = 0;
  for (int same = 0; same < 50; ++same) {
    const std::filesystem::directory_iterator all("/proc/self/task");
    const std::int64_t now = std::distance(begin(all), end(all));
    if (now != count) same = 0;
    count = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return count;
}

// OpenMP keeps its threads when a region ends, for as long as the thread lives that started it.
TEST(Executor, OpenMPStartsNoThread) {
  std::thread([] {
    omp_set_num_threads(1);  // of this thread's regions without a context, which pack test data
    const Inputs<float> in(7);
    ThreadExecutor own;
    const std::int64_t before = threads_now();
    every_operation({.threads = 3, .tier = {}, .executor = own.executor()}, in);
    every_operation({.threads = 1, .tier = {}}, in);
    EXPECT_EQ(threads_now(), before);
#ifndef __clang__  // whose OpenMP may have idle threads of another one's
    every_operation({.threads = 3, .tier = {}}, in);
    EXPECT_EQ(threads_now(), before + 2);
#endif
  }).join();
}

}  // namespace
}  // namespace twell
