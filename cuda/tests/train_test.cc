// Training on a GPU: forward and backward against the fp64 definition.
#include "cuda/tests/support/train.h"

#include "cuda/tests/support/gpu.h"
#include "twell/status.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

template <class T>
class CudaTrainTest : public testing::Test {};
using Types = testing::Types<bf16, Half>;
TYPED_TEST_SUITE(CudaTrainTest, Types);

TYPED_TEST(CudaTrainTest, SizesAndActivations) {
  TWELL_NEEDS_LIBRARY();
  const CudaCase cases[] = {
      {1, 8, 1, true, {}, -1.0F},
      {5, 24, 17, true, {Activation::fat_relu, 0.5F}, 0.0F},
      {67, 40, 70},
      {40, 72, 130, true, {}, -20.0F},
      {40, 72, 130, true, {}, 20.0F},
      {3, 13, 29, true, {}, 0.0F, 1},
      {35, 21, 66, false, {}, 0.0F, 2},
      {33, 72, 100, false, {Activation::relu_squared, 0.0F}, 0.5F},
      {70, 24, 330, true, {Activation::relu_squared, 0.0F}, 1.0F},
  };
  for (const CudaCase& c : cases) {
    const CudaLayer<TypeParam> layer(c);
    TrainCase options;
    options.options.kept_density = 1;
    check_training(layer, options);
    options.l1 = 0.25F;
    check_training<TypeParam, TypeParam>(layer, options);
  }
}

// Places without room are computed again, turns that all rows do not fit into follow each other.
TYPED_TEST(CudaTrainTest, BudgetsTooSmall) {
  TWELL_NEEDS_LIBRARY();
  for (const bool gated : {true, false}) {
    const CudaLayer<TypeParam> layer({43, 24, 90, gated, {}, 0.0F});
    // Turns of a row or two, of some rows, and one of all.
    const std::pair<double, std::int64_t> budgets[] = {
        {0.0, 77}, {0.1, 387}, {0.3, 0}, {1.0, 1000}};
    for (const auto& [kept, turn] : budgets) {
      TrainCase options;
      options.options = {kept, turn};
      options.l1 = 0.125F;
      check_training(layer, options);
      check_training<TypeParam, TypeParam>(layer, options);
    }
  }
}

TYPED_TEST(CudaTrainTest, HotNeurons) {
  TWELL_NEEDS_LIBRARY();
  for (const bool gated : {true, false}) {
    for (const float shift : {2.0F, 0.0F}) {
      const CudaLayer<TypeParam> layer({66, 24, 101, gated, {}, shift});
      for (const std::int64_t hot : {8, 32, 101}) {
        TrainCase options;
        options.hot = hot;
        options.l1 = 0.25F;
        check_training(layer, options);
        check_training<TypeParam, TypeParam>(layer, options);
      }
    }
  }
  TrainCase options;
  options.hot = 16;
  check_training(CudaLayer<TypeParam>({65, 13, 40, true, {}, 0.5F, 1}), options);
  check_training(CudaLayer<TypeParam>({64, 16, 64, true, {Activation::relu_squared, 0.0F}, 0.0F}),
                 options);
}

TYPED_TEST(CudaTrainTest, AddsToGradients) {
  TWELL_NEEDS_LIBRARY();
  const CudaLayer<TypeParam> layer({70, 24, 90, true, {}, 2.0F});
  for (const std::int64_t hot : {0, 32, 90}) {
    TrainCase options;
    options.hot = hot;
    options.accumulate = true;
    options.options.turn_places = 600;
    check_training(layer, options);
  }
}

// Rows and neurons that have everything: chunks that teams share.
TYPED_TEST(CudaTrainTest, LongRowsAndNeurons) {
  TWELL_NEEDS_LIBRARY();
  CudaLayer<TypeParam> layer({600, 24, 300, true, {}, 3.0F});
  for (const std::int64_t row : {3, 65}) layer.x.set(row, 0, -20.0F);
  layer.x.set(7, 0, 20.0F);
  for (const std::int64_t neuron : {0, 250}) layer.gate.set(neuron, 0, 20.0F);
  TrainCase options;
  options.chunk = 16;
  options.options.kept_density = 0.02;
  check_training(layer, options);
}

// More columns than a block or a warp takes at a time, more words than a block transposes.
TYPED_TEST(CudaTrainTest, WideRows) {
  TWELL_NEEDS_LIBRARY();
  CudaLayer<TypeParam> layer({2, 8248, 20, true, {}, 0.5F});
  layer.x.set(1, 0, -20.0F);
  TrainCase options;
  options.chunk = 8;
  check_training(layer, options);
  check_training(CudaLayer<TypeParam>({9, 16, 2100, true, {}, 1.0F}));
}

// Several blocks of rows in the forward pass's workspace.
TYPED_TEST(CudaTrainTest, BlocksOfRows) {
  TWELL_NEEDS_LIBRARY();
  const CudaLayer<TypeParam> layer({300, 16, 72, true, {}, 0.5F});
  for (const std::int64_t hot : {0, 24, 72}) {
    TrainCase options;
    options.hot = hot;
    options.options.workspace_limit = 1;
    options.options.kept_density = 0.3;
    check_training(layer, options);
  }
}

// What did not fire contributes nothing, whatever dy is there.
TYPED_TEST(CudaTrainTest, InfinitiesStayWhereTheyFired) {
  TWELL_NEEDS_LIBRARY();
  const CudaLayer<TypeParam> layer({12, 24, 60, true, {}, 1.0F});
  TrainingStep<TypeParam, float> step(layer, {});
  step.set_dy(4, 3, std::numeric_limits<float>::infinity());
  step.set_dy(5, 3, std::numeric_limits<float>::quiet_NaN());
  step.run();
  step.check();
}

TYPED_TEST(CudaTrainTest, NoRows) {
  TWELL_NEEDS_LIBRARY();
  for (const bool accumulate : {true, false}) {
    TrainCase options;
    options.hot = 16;
    options.accumulate = accumulate;
    check_training(CudaLayer<TypeParam>({0, 24, 60}), options);
  }
}

// Whatever order blocks, threads and stores come in.
class CudaTrainOrder : public testing::Test {
 protected:
  ~CudaTrainOrder() override {
#ifdef TWELL_CUDA_EMULATED
    emulation::set_blocks(emulation::Blocks::one_by_one);
    emulation::set_order(emulation::Order::ascending);
#endif
  }
};

TEST_F(CudaTrainOrder, ChangesNoBit) {
  TWELL_NEEDS_LIBRARY();
  CudaLayer<bf16> layer({300, 24, 70, true, {}, 2.0F});
  layer.x.set(3, 0, -20.0F);
  layer.gate.set(60, 0, 20.0F);
  TrainCase options;
  options.hot = 16;
  options.chunk = 8;
  options.options = {0.02, 4860};
  TrainingStep<bf16, bf16> first(layer, options);
  first.run();
  first.check();
  for (unsigned seed = 1; seed <= 4; ++seed) {
#ifdef TWELL_CUDA_EMULATED
    emulation::set_order(emulation::Order::shuffled, seed);
    emulation::set_blocks(
        seed % 2 == 0 ? emulation::Blocks::concurrent : emulation::Blocks::interleaved, seed);
#endif
    TrainingStep<bf16, bf16> again(layer, options);
    again.run();
    ASSERT_EQ(first.bits(), again.bits()) << seed;
  }
}

// python/twell/_fake.py has the same figures: tests/python/test_compile.py.
TEST(CudaTrainPlan, KeepsNoMoreThanCallersReserve) {
  EXPECT_EQ(cuda::most_kept_bytes(15, 100, 0), 2648);
  EXPECT_EQ(cuda::most_kept_bytes(1000, 5632, 500), 3'434'048);
  if (!cuda::library_present()) GTEST_SKIP() << "no libcublasLt.so";
  cuda::Device device;
  device.major = 9;
  device.sm_count = 132;
  device.shared_bytes = std::size_t{227} << 10;
  for (const std::int64_t rows : {0, 1, 3, 63, 64, 1000, 20000}) {
    for (const std::int64_t neurons : {1, 8, 127, 128, 129, 5632}) {
      for (const std::int64_t hot : {std::int64_t{0}, neurons / 3, neurons}) {
        cuda::Problem problem{rows, 24, neurons};
        problem.hot = hot;
        const auto kept = cuda::plan_train(device, problem).kept_bytes;
        EXPECT_LE(static_cast<std::int64_t>(kept), cuda::most_kept_bytes(rows, neurons, hot))
            << rows << " " << neurons << " " << hot;
      }
    }
  }
}

class CudaTrainArguments : public testing::Test {
 protected:
  static std::string refusal(const CudaLayer<bf16>& layer, const TrainCase& options,
                             std::size_t less_kept) {
    try {
      OnDevice<bf16> on(layer);
      cuda::Problem problem = cuda::problem_of(on.x.view(), on.weights(), on.y.view());
      const cuda::TrainPlan plan =
          cuda::plan_train(cuda::current_device(), problem, options.options);
      DeviceBuffer<std::byte> kept(plan.kept_bytes);
      DeviceBuffer<std::byte> workspace(plan.workspace_bytes);
      cuda::ffn_forward(plan, on.x.view(), on.weights(), {}, on.y.mutable_view(),
                        {kept.data(), kept.size() - less_kept},
                        {workspace.data(), workspace.size()}, nullptr);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }
};

TEST_F(CudaTrainArguments, AreNamed) {
  TWELL_NEEDS_LIBRARY();
  const CudaLayer<bf16> layer({3, 16, 20});
  EXPECT_EQ(refusal(layer, {}, 0), "");
  EXPECT_NE(refusal(layer, {}, 1).find("twell::cuda::ffn_forward: kept: expected"),
            std::string::npos);
  TrainCase options;
  options.options.turn_places = -1;
  EXPECT_NE(refusal(layer, options, 0).find("turn_places: expected 0 or more, got -1"),
            std::string::npos);
}

}  // namespace
}  // namespace twell
