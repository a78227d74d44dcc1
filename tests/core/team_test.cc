// What a team promises, with OpenMP's threads and with an executor's.
#include "core/team.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/message_of.h"
#include "tests/support/thread_executor.h"

namespace twell {
namespace {

constexpr std::int64_t kLongest = 1000;

// How often each index was run, and by which thread last.
class Seen {
 public:
  void add(std::int64_t i, int thread) {
    ++times_[static_cast<std::size_t>(i)];
    by_[static_cast<std::size_t>(i)] = thread;
  }
  int by(std::int64_t i) const { return by_[static_cast<std::size_t>(i)]; }
  void expect_once(std::int64_t n) const {
    for (std::int64_t i = 0; i < kLongest; ++i) {
      ASSERT_EQ(times_[static_cast<std::size_t>(i)], i < n ? 1 : 0) << i << " of " << n;
    }
  }

 private:
  using Counts = std::vector<std::atomic<int>>;
  Counts times_ = Counts(kLongest), by_ = Counts(kLongest);
};

// f(context) with 1 to 5 threads of OpenMP, then of an executor.
template <class F>
void on_every_team(F f) {
  test::ThreadExecutor own;
  for (int threads = 1; threads <= 5; ++threads) {
    for (const auto& executor : {std::optional<Executor>(), std::optional(own.executor())}) {
      SCOPED_TRACE(std::to_string(threads) + (executor ? " of an executor" : " of OpenMP"));
      f(Context({.threads = threads, .tier = CpuTier::portable, .executor = executor}));
    }
  }
}

TEST(TeamTest, EveryIndexOnce) {
  on_every_team([](const Context& context) {
    for (const std::int64_t n : {0L, 1L, 4L, 5L, 37L, kLongest}) {
      Seen in_stretches, without_wait, in_turns, by_one, by_seven, last;
      parallel(context, [&](Team& team) {
        const auto to = [&](Seen& seen) {
          return [&](std::int64_t i) { seen.add(i, team.thread()); };
        };
        team.for_static(n, to(in_stretches));
        team.for_static_nowait(n, to(without_wait));
        team.for_static_chunk1(n, to(in_turns));
        team.for_dynamic(n, 1, to(by_one));
        team.for_dynamic(n, 7, to(by_seven));
        team.for_dynamic_nowait(n, 3, to(last));
      });
      for (const Seen* seen :
           {&in_stretches, &without_wait, &in_turns, &by_one, &by_seven, &last}) {
        seen->expect_once(n);
      }
      Seen at_once;
      parallel_for(context, n, [&](std::int64_t i) { at_once.add(i, 0); });
      at_once.expect_once(n);
    }
  });
}

// Results of static schedules may depend on who runs what.
TEST(TeamTest, StaticLoopsAreOpenMPs) {
  on_every_team([](const Context& context) {
    for (const std::int64_t n : {1L, 5L, 13L, kLongest}) {
      Seen stretches, turns, wanted_stretches, wanted_turns;
      int granted = 0;
#pragma omp parallel num_threads(context.threads())
      {
#pragma omp for schedule(static)
        for (std::int64_t i = 0; i < n; ++i) wanted_stretches.add(i, omp_get_thread_num());
#pragma omp for schedule(static, 1)
        for (std::int64_t i = 0; i < n; ++i) wanted_turns.add(i, omp_get_thread_num());
#pragma omp single
        granted = omp_get_num_threads();
      }
      if (granted != context.threads()) GTEST_SKIP() << "OpenMP grants fewer threads";
      parallel(context, [&](Team& team) {
        team.for_static(n, [&](std::int64_t i) { stretches.add(i, team.thread()); });
        team.for_static_chunk1(n, [&](std::int64_t i) { turns.add(i, team.thread()); });
      });
      for (std::int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(stretches.by(i), wanted_stretches.by(i)) << i << " of " << n;
        ASSERT_EQ(turns.by(i), wanted_turns.by(i)) << i << " of " << n;
      }
    }
  });
}

// Each round reads what all threads wrote in the one before.
TEST(TeamTest, BarriersOrderWhatIsWritten) {
  static constexpr int kRounds = 200;
  on_every_team([](const Context& context) {
    std::vector<std::int64_t> sums(static_cast<std::size_t>(context.threads()));
    std::int64_t all = 1;
    int rounds = 0, threads = 0;
    std::atomic<bool> wrong = false;
    parallel(context, [&](Team& team) {
      for (int round = 0; round < kRounds; ++round) {
        sums[static_cast<std::size_t>(team.thread())] = all;
        team.barrier();
        team.single([&] {
          threads = team.threads();
          ++rounds;
          all = std::accumulate(sums.begin(), sums.begin() + threads, std::int64_t{0}) % 1000 + 1;
        });
        if (rounds != round + 1) wrong = true;
        team.barrier();
      }
    });
    EXPECT_FALSE(wrong);
    EXPECT_EQ(rounds, kRounds);
    std::int64_t wanted = 1;
    for (int round = 0; round < kRounds; ++round) wanted = wanted * threads % 1000 + 1;
    EXPECT_EQ(all, wanted);
  });
}

// More than there are counters for: threads may be several loops apart.
TEST(TeamTest, ManyLoopsWithoutWaiting) {
  static constexpr int kLoops = 5 * TeamTasks::kLoops + 1;
  on_every_team([](const Context& context) {
    std::vector<Seen> seen(kLoops);
    parallel(context, [&](Team& team) {
      for (int loop = 0; loop < kLoops; ++loop) {
        team.for_dynamic_nowait(kLongest - loop, 1 + loop % 3, [&](std::int64_t i) {
          seen[static_cast<std::size_t>(loop)].add(i, team.thread());
        });
      }
    });
    for (int loop = 0; loop < kLoops; ++loop) {
      seen[static_cast<std::size_t>(loop)].expect_once(kLongest - loop);
    }
  });
}

TEST(TeamTest, AnExecutorGetsOneTaskAThread) {
  test::ThreadExecutor own;
  for (int threads = 1; threads <= 5; ++threads) {
    const Context context(
        {.threads = threads, .tier = CpuTier::portable, .executor = own.executor()});
    const int calls = own.calls(), tasks = own.tasks();
    std::vector<int> team_threads(5, 0);
    parallel(context, [&](Team& team) {
      EXPECT_EQ(omp_get_num_threads(), 1);  // in no region of OpenMP's
      team_threads[static_cast<std::size_t>(team.thread())] = team.threads();
    });
    for (int t = 0; t < 5; ++t) {
      EXPECT_EQ(team_threads[static_cast<std::size_t>(t)], t < threads ? threads : 0);
    }
    EXPECT_EQ(own.calls() - calls, threads > 1 ? 1 : 0);
    EXPECT_EQ(own.tasks() - tasks, threads > 1 ? threads : 0);
  }
}

// Its loops are no part of a region that it is called from.
TEST(TeamTest, OneThreadWithinARegionOfTheCallers) {
  constexpr int kCallers = 3;
  std::vector<Seen> seen(kCallers);
#pragma omp parallel num_threads(kCallers)
  {
    const int caller = omp_get_thread_num();
    const Context context({.threads = 1, .tier = CpuTier::portable});
    parallel(context, [&](Team& team) {
      Seen& own = seen[static_cast<std::size_t>(caller)];
      team.for_dynamic(100, 3, [&](std::int64_t i) { own.add(i, 0); });
      team.single([&] { own.add(100, 0); });
      team.for_static(100, [&](std::int64_t i) { own.add(101 + i, 0); });
    });
#pragma omp barrier
    if (caller == 0) {
      for (int c = 0; c < omp_get_num_threads(); ++c) {
        seen[static_cast<std::size_t>(c)].expect_once(201);
      }
    }
  }
}

TEST(TeamTest, AnExecutorWithoutAFunctionIsRefused) {
  EXPECT_EQ(test::message_of([] { Context({.threads = 2, .tier = {}, .executor = Executor()}); }),
            "twell::Context: executor: run is null");
}

}  // namespace
}  // namespace twell
