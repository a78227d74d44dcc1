// What --path auto chooses by: interpolation, the file, its mistakes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "device/calibration.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

class CostModelFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("twell-cost-model-" + std::to_string(getpid()));
    file_ = folder_ / "twell" / "calibration.json";
    setenv("TWELL_CALIBRATION", file_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("TWELL_CALIBRATION");
    fs::remove_all(folder_);
  }
  void write(const std::string& text) {
    fs::create_directories(file_.parent_path());
    std::ofstream(file_) << text;
  }
  fs::path folder_, file_;
};

CostModel small() {
  CostModel model;
  model.measured_on = machine_key(CpuTier::avx2, 3);
  model.tokens = {1, 16};
  model.densities = {0.0, 0.5, 1.0};
  model.dense = {1.0, 4.0};
  model.sparse = {{0.25, 0.5, 1.0}, {1.0, 4.0, 16.0}};
  return model;
}

constexpr FfnShape kThousand{10, 100};  // one nanosecond a weight is one microsecond

TEST(CostModel, InterpolatesBetweenWhatWasMeasured) {
  const CostModel model = small();
  EXPECT_DOUBLE_EQ(model.dense_us(1, kThousand), 1.0);
  EXPECT_DOUBLE_EQ(model.dense_us(4, kThousand), 2.0);  // half way in logarithms
  EXPECT_DOUBLE_EQ(model.dense_us(16, kThousand), 4.0);
  EXPECT_DOUBLE_EQ(model.dense_us(64, kThousand), 16.0);  // proportional from there on
  EXPECT_DOUBLE_EQ(model.sparse_us(1, 0.25, kThousand), 0.375);
  EXPECT_DOUBLE_EQ(model.sparse_us(4, 0.5, kThousand), std::sqrt(0.5 * 4.0));
  EXPECT_DOUBLE_EQ(model.sparse_us(16, 2.0, kThousand), 16.0);  // no density beyond all
  EXPECT_DOUBLE_EQ(model.sparse_us(0, 0.0, kThousand), 0.25);
  const FfnShape plain{10, 100, false};  // two GEMMs of three; the second is what sparsity saves
  EXPECT_DOUBLE_EQ(model.dense_us(16, plain), 4.0 * 2 / 3);
  EXPECT_DOUBLE_EQ(model.sparse_us(16, 1.0, plain), 8.5);
  CostModel of_plain = small();  // measured without a gate: nothing to take off
  of_plain.gated = false;
  EXPECT_DOUBLE_EQ(of_plain.dense_us(16, plain), 4.0);
  EXPECT_DOUBLE_EQ(of_plain.sparse_us(16, 1.0, plain), 16.0);
  // Sparse takes (1 + 6 density) µs and has to take less than 4 / 1.02.
  EXPECT_FALSE(model.prefers_dense(16, 0.48, kThousand));
  EXPECT_TRUE(model.prefers_dense(16, 0.49, kThousand));
}

TEST(CostModel, BuiltInFiguresAreMonotoneAndComplete) {
  for (const CpuTier tier : kAllCpuTiers) {
    const CostModel model = built_in_cost_model(tier);
    ASSERT_EQ(model.dense.size(), model.tokens.size());
    ASSERT_EQ(model.sparse.size(), model.tokens.size());
    for (const std::int64_t rows : {1, 2, 5, 64, 300, 4096}) {
      bool before = false;
      double last = 0;
      for (double density = 0; density <= 1.0; density += 0.01) {
        const double now = model.sparse_us(rows, density, kThousand);
        EXPECT_GE(now, last) << name_of(tier) << " " << rows << " " << density;
        EXPECT_GE(model.prefers_dense(rows, density, kThousand), before);
        before = model.prefers_dense(rows, density, kThousand);
        last = now;
      }
      EXPECT_FALSE(model.prefers_dense(rows, 0.005, kThousand));
      if (rows > 1) {  // everything fires
        EXPECT_TRUE(before) << name_of(tier) << " " << rows;
      }
    }
  }
}

TEST_F(CostModelFile, KeepsOneEntryPerMachine) {
  EXPECT_EQ(load_cost_model(CpuTier::avx2, 3).measured_on, "");  // no file, no folder
  CostModel first = small();
  save_cost_model(first);
  CostModel second = small();
  second.measured_on = machine_key(CpuTier::avx2, 4);
  second.dense[0] = 9.0;
  save_cost_model(second);
  first.dense[1] = 5.0;
  save_cost_model(first);  // replaces its own
  EXPECT_EQ(load_cost_model(CpuTier::avx2, 3).dense, first.dense);
  EXPECT_EQ(load_cost_model(CpuTier::avx2, 4).dense, second.dense);
  EXPECT_EQ(load_cost_model(CpuTier::avx2, 3).sparse, first.sparse);
  EXPECT_EQ(load_cost_model(CpuTier::avx512, 3).measured_on, "");
}

TEST_F(CostModelFile, DamageIsOneLineThatSaysWhatToDo) {
  save_cost_model(small());
  std::stringstream saved;
  saved << std::ifstream(file_).rdbuf();
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = saved.str();
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::string half = saved.str().substr(0, saved.str().size() / 2);
  for (const std::string& text :
       {half, std::string("[1]"), replaced("4.0", "-4.0"), replaced("4.0", "\"x\""),
        replaced("16\n", "1\n"), replaced("16.0", "1e300"), replaced("\"tokens\"", "\"t\"")}) {
    write(text);
    try {
      load_cost_model(CpuTier::avx2, 3);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_EQ(what.rfind(file_.string() + ": ", 0), 0U) << what;
      EXPECT_NE(what.find("delete it and run twell calibrate again"), std::string::npos);
      EXPECT_EQ(what.find('\n'), std::string::npos);
    }
    // It may be anybody's: nothing replaces it.
    EXPECT_THROW(save_cost_model(small()), Error);
    std::stringstream kept;
    kept << std::ifstream(file_).rdbuf();
    EXPECT_EQ(kept.str(), text);
    std::filesystem::remove(file_);
    save_cost_model(small());
    EXPECT_EQ(load_cost_model(CpuTier::avx2, 3).dense, small().dense);
  }
}

// They would be other files in every folder.
TEST_F(CostModelFile, RelativeFoldersDoNotCount) {
  const auto set = [](const char* name, const char* value) {
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  };
  const auto found = [&](const char* cache, const char* home) {
    unsetenv("TWELL_CALIBRATION");
    const char* before = std::getenv("HOME");
    const std::string kept = before == nullptr ? "" : before;
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    const fs::path out = calibration_file();
    set("XDG_CACHE_HOME", nullptr);
    set("HOME", before == nullptr ? nullptr : kept.c_str());
    return out;
  };
  EXPECT_EQ(found("/cache", "/home"), "/cache/twell/calibration.json");
  EXPECT_EQ(found("cache", "/home"), "/home/.cache/twell/calibration.json");
  EXPECT_EQ(found(nullptr, "/home"), "/home/.cache/twell/calibration.json");
  for (const char* none : {"", "home", "./home"}) EXPECT_EQ(found(none, none), "") << none;
  EXPECT_EQ(found(nullptr, nullptr), "");
}

}  // namespace
}  // namespace twell::lm
