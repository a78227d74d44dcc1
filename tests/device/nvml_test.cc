// Energy of a GPU, by a library that only plays one.
#include "device/nvml.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "measure/run_energy.h"

namespace twell::lm {
namespace {

class GpuEnergy : public testing::Test {
 protected:
  static void mode(const char* name) { setenv("FAKE_NVML", name, 1); }
  static void wait(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
};

TEST_F(GpuEnergy, ByTheCounter) {
  mode("counter");
  GpuEnergyMeter meter("GPU-fake", FAKE_NVML_LIBRARY);
  ASSERT_TRUE(meter.available());
  EXPECT_TRUE(meter.counts());
  for (int i = 0; i < 2; ++i) {
    meter.start();
    EXPECT_DOUBLE_EQ(meter.joules().value(), 2.5);  // one reading further
  }
}

TEST_F(GpuEnergy, BySamplesOfThePower) {
  mode("power");
  GpuEnergyMeter meter("GPU-fake", FAKE_NVML_LIBRARY);
  ASSERT_TRUE(meter.available());
  EXPECT_FALSE(meter.counts());
  EXPECT_FALSE(meter.joules().has_value()) << "not started";
  for (int i = 0; i < 2; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    meter.start();
    wait(100);
    const double joules = meter.joules().value();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    // Any two neighbouring samples have the mean 200 W. The samples begin and end a little inside
    // the interval that is timed here.
    EXPECT_LE(joules, 200 * seconds);
    EXPECT_GE(joules, 200 * 0.09);
  }
}

TEST_F(GpuEnergy, MissingFiguresAreNoFigures) {
  mode("power");
  EXPECT_FALSE(GpuEnergyMeter("GPU-other", FAKE_NVML_LIBRARY).available());
  EXPECT_FALSE(GpuEnergyMeter("GPU-fake", "no-such-library.so").available());
  mode("none");
  GpuEnergyMeter none("GPU-fake", FAKE_NVML_LIBRARY);
  EXPECT_FALSE(none.available());
  none.start();
  EXPECT_FALSE(none.joules().has_value());
}

TEST_F(GpuEnergy, AGpuThatIsLostMeanwhile) {
  mode("lost");
  // Readings so far may be any number; the library is loaded anew, so that they begin at none.
  GpuEnergyMeter meter("GPU-fake", FAKE_NVML_LIBRARY);
  ASSERT_TRUE(meter.available());
  meter.start();
  wait(60);
  EXPECT_FALSE(meter.joules().has_value());
}

TEST_F(GpuEnergy, TheLibraryIsShutDownAsOftenAsItIsStarted) {
  mode("counter");
  void* library = dlopen(FAKE_NVML_LIBRARY, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const auto inits = reinterpret_cast<int (*)()>(dlsym(library, "fake_nvml_inits"));
  {
    GpuEnergyMeter meter("GPU-fake", FAKE_NVML_LIBRARY);
    EXPECT_EQ(inits(), 1);
  }
  EXPECT_EQ(inits(), 0);
  dlclose(library);
}

TEST_F(GpuEnergy, OfTheTimedRunsOfEverySide) {
  mode("counter");
  RunEnergy energy("GPU-fake", 2, FAKE_NVML_LIBRARY);
  EXPECT_STREQ(energy.source(), "nvml counter");
  MeasureOptions measure{.repeats = 3, .min_seconds = 1e-4};
  energy.watch(measure);
  const auto side = [](std::int64_t) { wait(1); };
  (void)measure_in_turns({side, side}, measure);
  // Two readings around each of three runs, and none besides.
  EXPECT_DOUBLE_EQ(energy.joules(0).value(), 3 * 2.5);
  EXPECT_DOUBLE_EQ(energy.joules(1).value(), 3 * 2.5);
}

TEST_F(GpuEnergy, OfRunsIsNoneWhereAReadingIsMissing) {
  mode("lost");
  RunEnergy energy("GPU-fake", 1, FAKE_NVML_LIBRARY);
  EXPECT_STREQ(energy.source(), "nvml power samples");
  MeasureOptions measure{.repeats = 2, .min_seconds = 0.06};
  energy.watch(measure);
  (void)measure_in_turns({[](std::int64_t) { wait(1); }}, measure);
  EXPECT_FALSE(energy.joules(0).has_value());
  MeasureOptions unwatched;
  RunEnergy none("GPU-other", 1, FAKE_NVML_LIBRARY);
  none.watch(unwatched);
  EXPECT_FALSE(unwatched.before_run);
  EXPECT_EQ(none.source(), nullptr);
  EXPECT_FALSE(none.joules(0).has_value());
}

}  // namespace
}  // namespace twell::lm
