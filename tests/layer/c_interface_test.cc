// The C interface against twell::Layer: the same bits, errors in one line, and no exception.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/matrix.h"
#include "tests/support/thread_executor.h"
#include "twell/c.h"
#include "twell/layer.h"

namespace twell {
namespace {

namespace fs = std::filesystem;
using test::random_matrix;
using test::TestMatrix;
using testing::HasSubstr;

constexpr std::int64_t kWidth = 72, kNeurons = 200, kColumns = 40;

template <class T>
twell_weight weight_of(const TestMatrix<T>& m) {
  const ConstMatrixView view = m.view();
  const twell_type type = view.dtype == DType::bf16 ? TWELL_BF16 : TWELL_F32;
  return {view.data, type, view.rows, view.cols, view.row_stride, nullptr};
}

class CInterface : public testing::Test {
 protected:
  CInterface() {
    description.type = TWELL_F32;
    description.gate = weight_of(gate);
    description.up = weight_of(up);
    description.down = weight_of(down);
    description.activation = TWELL_FAT_RELU;
    description.up_activation = TWELL_RELU;
    description.threshold = 0.1F;
    description.gate_bias = vector.data();
    description.up_bias = vector.data();
    description.down_bias = vector.data();
    description.norm_epsilon = 1e-3F;
    description.norm_weight = vector.data();
    description.sparse_only = 1;  // else timings decide, and with them the bits
  }
  ~CInterface() override { twell_context_free(context); }

  // By the C++ interface.
  TestMatrix<float> expected() const {
    FfnForm form(Activation::fat_relu, 0.1F);
    form.up = Activation::relu;
    form.gate_bias = form.up_bias = vector;
    form.down_bias = std::span(vector).first(kColumns);
    form.norm_weight = vector;
    form.norm_epsilon = 1e-3F;
    Context own({.threads = 2, .tier = {}});
    Layer layer(own, {gate.view(), up.view(), down.view()}, form, {.path = LayerPath::sparse});
    layer.prepare(own, x.view());
    TestMatrix<float> y(x.rows(), kColumns);
    layer.run(own, x.view(), y.view());
    return y;
  }
  // What a layer gives, or what went wrong.
  std::string run(twell_layer* layer, twell_context* on) {
    const MatrixView view = y.view();
    const int status = twell_layer_run(layer, on, x.rows(), x.view().data, x.view().row_stride,
                                       view.data, view.row_stride, &fired);
    return status == 0 ? "" : twell_last_error();
  }
  std::string error_of_new() {
    twell_layer* const layer = twell_layer_new(context, &description, nullptr, 0);
    EXPECT_EQ(layer, nullptr);
    twell_layer_free(layer);
    return twell_last_error();
  }

  const TestMatrix<float> gate = random_matrix<float>(kNeurons, kWidth, 1, 0.1F, 3);
  const TestMatrix<float> up = random_matrix<float>(kNeurons, kWidth, 2, 0.1F, 5);
  const TestMatrix<float> down = random_matrix<float>(kColumns, kNeurons, 3, 0.1F, 1);
  const TestMatrix<float> x = random_matrix<float>(48, kWidth, 9, 1.0F, 7);
  TestMatrix<float> y{48, kColumns, 3};
  std::vector<float> vector = std::vector<float>(kNeurons, 0.25F);
  std::int64_t fired = 0;
  twell_context* context = twell_context_new(2, nullptr);
  twell_layer_description description = TWELL_LAYER_INIT;
};

void expect_same(const TestMatrix<float>& a, const TestMatrix<float>& b) {
  for (std::int64_t r = 0; r < a.rows(); ++r) {
    for (std::int64_t c = 0; c < a.cols(); ++c) ASSERT_EQ(a.value(r, c), b.value(r, c));
  }
}

TEST_F(CInterface, IsTheLayer) {
  ASSERT_NE(context, nullptr) << twell_last_error();
  const TestMatrix<float> right = expected();
  twell_layer* layer = twell_layer_new(context, &description, x.view().data, 48);
  // The rows of x lie apart, and a sample's do not.
  ASSERT_NE(layer, nullptr) << twell_last_error();
  EXPECT_EQ(run(layer, context), "");
  expect_same(y, right);
  EXPECT_GT(fired, 0);
  EXPECT_LT(fired, 48 * kNeurons);
  std::int64_t width = 0, neurons = 0, columns = 0;
  twell_layer_sizes(layer, &width, &neurons, &columns);
  EXPECT_EQ(width, kWidth);
  EXPECT_EQ(neurons, kNeurons);
  EXPECT_EQ(columns, kColumns);
  twell_layer_sizes(layer, nullptr, nullptr, nullptr);

  char text[1000];
  const std::int64_t length = twell_layer_plan(layer, context, 48, text, sizeof text);
  EXPECT_EQ(length, static_cast<std::int64_t>(std::string(text).size()));
  EXPECT_THAT(text, HasSubstr("2 threads"));
  char start[8];
  EXPECT_EQ(twell_layer_plan(layer, context, 48, start, sizeof start), length);
  EXPECT_EQ(std::string(start), std::string(text, 7));
  EXPECT_EQ(twell_layer_plan(layer, context, 48, nullptr, 0), length);

  const std::string path =
      fs::temp_directory_path() / ("twell_c_" + std::to_string(::getpid()) + ".twell");
  ASSERT_EQ(twell_layer_save(layer, path.c_str()), 0) << twell_last_error();
  twell_layer_free(layer);
  layer = twell_layer_open(context, path.c_str(), 1);
  ASSERT_NE(layer, nullptr) << twell_last_error();
  fs::remove(path);
  EXPECT_EQ(run(layer, context), "");
  expect_same(y, right);
  twell_layer_free(layer);
}

// One layer, by two threads of the caller's, each on threads of its executor.
TEST_F(CInterface, RunsOnThreadsOfTheCaller) {
  const TestMatrix<float> right = expected();
  test::ThreadExecutor threads_of_caller;
  const Executor own_threads = threads_of_caller.executor();
  const twell_executor executor{own_threads.run, own_threads.self};
  twell_layer* const layer = twell_layer_new(context, &description, x.view().data, 48);
  ASSERT_NE(layer, nullptr) << twell_last_error();
  std::vector<TestMatrix<float>> results(2, TestMatrix<float>(48, kColumns));
  std::vector<std::thread> threads;
  for (TestMatrix<float>& result : results) {
    threads.emplace_back([&] {
      twell_context* const own = twell_context_new(2, &executor);
      for (int call = 0; call < 5; ++call) {
        const MatrixView view = result.view();
        EXPECT_EQ(twell_layer_run(layer, own, 48, x.view().data, x.view().row_stride, view.data,
                                  view.row_stride, nullptr),
                  0);
      }
      twell_context_free(own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const TestMatrix<float>& result : results) expect_same(result, right);
  EXPECT_GE(threads_of_caller.calls(), 10);
  twell_layer_free(layer);
}

TEST_F(CInterface, SaysWhatWentWrong) {
  EXPECT_STREQ(twell_version(), TWELL_VERSION);
  EXPECT_EQ(std::string(TWELL_VERSION), std::to_string(TWELL_VERSION_MAJOR) + "." +
                                            std::to_string(TWELL_VERSION_MINOR) + "." +
                                            std::to_string(TWELL_VERSION_PATCH));
  EXPECT_STREQ(TWELL_VERSION, PROJECT_VERSION);
  std::thread([] { EXPECT_STREQ(twell_last_error(), ""); }).join();

  EXPECT_EQ(twell_context_new(-1, nullptr), nullptr);
  EXPECT_THAT(twell_last_error(), HasSubstr("threads: expected 1 to 4096, got -1"));
  const twell_executor none{nullptr, nullptr};
  EXPECT_EQ(twell_context_new(1, &none), nullptr);
  EXPECT_THAT(twell_last_error(), HasSubstr("executor->run: is NULL"));

  const twell_layer_description good = description;
  description.down.cols = 39;
  EXPECT_THAT(error_of_new(), HasSubstr("down: expected f32 [40, 200], got f32 [40, 39]"));
  description = good;
  description.gate.data = nullptr;
  EXPECT_THAT(error_of_new(), HasSubstr("gate"));
  description = good;
  description.type = 7;
  EXPECT_THAT(error_of_new(), HasSubstr("type: expected one of the constants, got 7"));
  description = good;
  description.activation = 256;
  EXPECT_THAT(error_of_new(), HasSubstr("activation: expected one of the constants, got 256"));
  description = good;
  description.up_activation = -1;
  EXPECT_THAT(error_of_new(), HasSubstr("up_activation: expected one of the constants, got -1"));
  description = good;
  description.size = 0;
  EXPECT_THAT(error_of_new(), HasSubstr("TWELL_LAYER_INIT"));
  description.size = sizeof description + 8;
  EXPECT_THAT(error_of_new(), HasSubstr("a later version than this library"));
  description = good;
  EXPECT_EQ(twell_layer_new(nullptr, &description, nullptr, 0), nullptr);
  EXPECT_THAT(twell_last_error(), HasSubstr("context: is NULL"));
  EXPECT_EQ(twell_layer_new(context, nullptr, nullptr, 0), nullptr);
  EXPECT_THAT(twell_last_error(), HasSubstr("description: is NULL"));

  twell_layer* const layer = twell_layer_new(context, &description, nullptr, 0);
  EXPECT_EQ(twell_layer_save(layer, "unused"), -1);
  EXPECT_THAT(twell_last_error(), HasSubstr("given a sample, or ran"));
  EXPECT_THAT(run(nullptr, context), HasSubstr("layer: is NULL"));
  EXPECT_THAT(run(layer, nullptr), HasSubstr("context: is NULL"));
  EXPECT_EQ(twell_layer_run(layer, context, 2, nullptr, 0, y.view().data, 0, nullptr), -1);
  EXPECT_THAT(twell_last_error(), HasSubstr("x"));
  EXPECT_EQ(twell_layer_run(layer, context, -1, x.view().data, 0, y.view().data, 0, nullptr), -1);
  EXPECT_THAT(twell_last_error(), HasSubstr("x: expected a shape, got [-1, 72]"));
  EXPECT_EQ(twell_layer_open(context, "/nowhere/layer.twell", 0), nullptr);
  EXPECT_THAT(twell_last_error(), HasSubstr("/nowhere/layer.twell: cannot be opened"));
  EXPECT_EQ(run(layer, context), "");
  EXPECT_EQ(twell_layer_save(layer, "/nowhere/layer.twell"), -1);
  EXPECT_THAT(twell_last_error(), HasSubstr("/nowhere/layer.twell: cannot write beside it"));
  twell_layer_free(layer);
  twell_layer_free(nullptr);
  twell_context_free(nullptr);
}

}  // namespace
}  // namespace twell
