// Timing in turns, and the processor's energy counters.
#include "measure/timing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "measure/energy.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

TEST(EnergyMeter, CountsPackagesAndTheirWrapAround) {
  const fs::path directory =
      fs::temp_directory_path() / ("twell_energy_" + std::to_string(::getpid()));
  const auto write = [&](const char* name, double value) {
    fs::create_directories((directory / name).parent_path());
    std::ofstream(directory / name) << static_cast<std::int64_t>(value) << "\n";
  };
  write("intel-rapl:0/max_energy_range_uj", 10e6);
  write("intel-rapl:0/energy_uj", 9e6);
  write("intel-rapl:1/max_energy_range_uj", 10e6);
  write("intel-rapl:1/energy_uj", 1e6);
  write("intel-rapl:0:0/max_energy_range_uj", 10e6);  // a part of package 0
  write("intel-rapl:0:0/energy_uj", 0);
  EnergyMeter meter(directory.string());
  ASSERT_TRUE(meter.available());
  meter.start();
  write("intel-rapl:0/energy_uj", 2e6);  // wrapped: 3 J
  write("intel-rapl:1/energy_uj", 1.5e6);
  write("intel-rapl:0:0/energy_uj", 9e6);
  EXPECT_DOUBLE_EQ(meter.joules().value(), 3.5);
  EXPECT_FALSE(EnergyMeter((directory / "none").string()).available());
  fs::remove_all(directory);
}

TEST(Timing, TakesTurnsAndReportsMediansPerCall) {
  std::vector<int> order;
  std::vector<std::int64_t> numbers;
  const auto side = [&](int which) {
    return [&, which](std::int64_t i) {
      order.push_back(which);
      if (which == 0) numbers.push_back(i);
      std::this_thread::sleep_for(std::chrono::milliseconds(which == 0 ? 2 : 6));
    };
  };
  const auto timings = measure_in_turns({side(0), side(1)}, {.repeats = 4, .min_seconds = 0.004});
  ASSERT_EQ(timings.size(), 2U);
  EXPECT_EQ(timings[0].runs_us.size(), 4U);
  EXPECT_GE(timings[0].median_us, 2000);
  EXPECT_GE(timings[1].median_us, 6000);
  EXPECT_GT(timings[1].median_us, timings[0].median_us);
  EXPECT_LE(timings[0].min_us, timings[0].median_us);
  // Inputs rotate: every call has the next number.
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(numbers[i], static_cast<std::int64_t>(i));
  }
  // Both sides alternate instead of one after the other.
  const auto half = order.begin() + static_cast<std::ptrdiff_t>(order.size() / 2);
  EXPECT_GT(std::count(half, order.end(), 0), 0);
  EXPECT_GT(std::count(half, order.end(), 1), 0);
}

// Where a call is as long as many runs were to be, there are only as many calls as it takes.
TEST(Timing, LongCallsAreFew) {
  std::vector<int> calls(2, 0);
  int alive = 0;
  const auto side = [&](std::size_t which) {
    return [&, which](std::int64_t) {
      ++calls[which];
      std::this_thread::sleep_for(std::chrono::milliseconds(which == 0 ? 1 : 20));
    };
  };
  MeasureOptions options{.repeats = 7, .min_seconds = 0.001};
  options.enough_seconds = 0.05;
  options.alive = [&] { ++alive; };
  const auto timings = measure_in_turns({side(0), side(1)}, options);
  EXPECT_EQ(calls[1], 1 + 3);
  EXPECT_EQ(timings[0].runs_us.size(), 3U);
  EXPECT_EQ(timings[1].runs_us.size(), 3U);
  EXPECT_GE(alive, 2 * 3 + 2);
}

TEST(Timing, MedianOfEvenAndOdd) {
  EXPECT_DOUBLE_EQ(median({3, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(median({4, 1, 2, 3}), 2.5);
}

}  // namespace
}  // namespace twell::lm
