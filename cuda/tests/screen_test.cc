// The gate by way of its screen: what the screen rules out is zero, and the rest is what the weight
// says, against the fp64 definition.
#include "cuda/tests/support/ffn.h"
#include "cuda/tests/support/gpu.h"
#include "tests/support/message_of.h"
#include "tests/support/worst_case.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

template <class T>
class CudaScreenTest : public testing::Test {};
using Types = testing::Types<bf16, Half>;
TYPED_TEST_SUITE(CudaScreenTest, Types);

template <class T>
cuda::GemmPlan screen_plan(const CudaLayer<T>& layer, std::int32_t tile = 0) {
  cuda::Problem problem = layer.problem();
  problem.screened = true;
  return cuda::plan_gemm_relu_twell(cuda::GemmShape::screen32x32, cuda::current_device(), problem,
                                    tile);
}

template <class T>
std::vector<float> row_of(const TestMatrix<T>& m, std::int64_t row) {
  std::vector<float> out;
  for (std::int64_t k = 0; k < m.cols(); ++k) out.push_back(m.value(row, k));
  return out;
}
template <class T>
void set_row(TestMatrix<T>& m, std::int64_t row, const std::vector<float>& values) {
  for (std::size_t k = 0; k < values.size(); ++k) {
    m.set(row, static_cast<std::int64_t>(k), values[k]);
  }
}

// With the mean as axis, with a token, and with none.
template <class T>
void check(const CudaLayer<T>& layer, std::int32_t tile = 0, std::int32_t capacity = 16) {
  for (const std::vector<float>& axis :
       {mean_of(layer.x), row_of(layer.x, 0), std::vector<float>()}) {
    SCOPED_TRACE(axis.empty() ? "no axis" : "axis from " + std::to_string(axis[0]));
    const DeviceScreenOf<T> screen(layer, axis);
    check_gemm(screen_plan(layer, tile), layer, capacity, screen.view);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Neurons of tokens that the screen leaves.
template <class T>
std::int64_t candidates_of(const CudaLayer<T>& layer, const std::vector<float>& axis,
                           const ActivationSpec& activation = {}) {
  const DeviceScreenOf<T> screen(layer, axis);
  OnDevice<T> on(layer);
  on.screen = screen.view;
  FfnOptions options;
  options.shape = cuda::GemmShape::screen32x32;
  const cuda::FfnPlan plan = plan_of(on, layer, options);
  DeviceBuffer<std::byte> memory(plan.workspace_bytes);
  DeviceBuffer<std::int64_t> candidates(std::vector<std::int64_t>{5});
  cuda::ffn(plan, on.x.view(), on.weights(), activation, on.y.mutable_view(),
            {memory.data(), memory.size()}, nullptr, {nullptr, nullptr, candidates.data()});
  TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  return candidates.read()[0] - 5;
}

TYPED_TEST(CudaScreenTest, TailSizes) {
  TWELL_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 2, 7, 8, 9, 16, 17, 31, 32}) {
    check(CudaLayer<TypeParam>({tokens, 72, 70}));
  }
  for (const std::int64_t depth : {8, 64, 72, 248, 256, 264, 512, 600}) {
    check(CudaLayer<TypeParam>({5, depth, 40}));
  }
  for (const std::int64_t hidden : {1, 7, 8, 9, 31, 32, 33, 97}) {
    check(CudaLayer<TypeParam>({3, 40, hidden}));
  }
}

// More runs than warps; dot products of more inputs than a pass takes.
TYPED_TEST(CudaScreenTest, WideRows) {
  TWELL_NEEDS_GPU();
  for (const std::int64_t depth : {2048, 2056, 4104, 4608}) {
    check(CudaLayer<TypeParam>({3, depth, 20, true, {}, 0.5F}));
  }
  check(CudaLayer<TypeParam>({10, 4101, 20, true, {}, 0.5F}));
}

TYPED_TEST(CudaScreenTest, RowsThatAreNotAligned) {
  TWELL_NEEDS_GPU();
  for (const std::int64_t depth : {1, 2, 3, 63, 65, 255, 257, 72}) {
    check(CudaLayer<TypeParam>({9, depth, 35, true, {}, 0.5F, 3}));
  }
  check(CudaLayer<TypeParam>({5, 40, 50, true, {}, 1.0F, 16}));  // padded, and aligned
}

TYPED_TEST(CudaScreenTest, EveryActivationDensityTileAndCapacity) {
  TWELL_NEEDS_GPU();
  for (const Activation kind : {Activation::relu, Activation::relu_squared, Activation::fat_relu}) {
    const float threshold = kind == Activation::fat_relu ? 0.25F : 0.0F;
    for (const float shift : {20.0F, 1.0F, -20.0F}) {
      const CudaLayer<TypeParam> layer({9, 96, 40, true, {kind, threshold}, shift});
      check(layer, 16, shift < 0 ? 8 : 16);
      check(layer, 32, shift < 0 ? 31 : 32);
    }
  }
}

// Neurons that fire by a hundredth of what 8 bits may leave out, of the token and of the weight: in
// a warp's only run, in the first of two and in the second.
TYPED_TEST(CudaScreenTest, KeepsWhatBarelyFires) {
  TWELL_NEEDS_GPU();
  constexpr std::int64_t kPairs = 16;
  constexpr std::int64_t kInputs = 248;  // in one run, and its scale
  struct Case {
    std::int64_t width, first;
  };
  for (const Case c : {Case{kInputs, 0}, {2304, 0}, {2304, 2048}}) {
    SCOPED_TRACE(c.first);
    CudaLayer<TypeParam> layer({2 * kPairs, c.width, 2 * kPairs});
    const auto widened = [&](const std::vector<float>& values) {
      std::vector<float> row(static_cast<std::size_t>(c.width));
      std::copy(values.begin(), values.end(), row.begin() + c.first);
      return row;
    };
    const auto x = random_matrix<TypeParam>(2 * kPairs, kInputs, 11);
    const auto gate = random_matrix<TypeParam>(2 * kPairs, kInputs, 12);
    for (std::int64_t p = 0; p < 2 * kPairs; ++p) {
      const bool of_x = p < kPairs;
      const std::vector<float> own = row_of(of_x ? x : gate, p);
      set_row(of_x ? layer.x : layer.gate, p, widened(own));
      set_row(of_x ? layer.gate : layer.x, p, widened(worst_case(own, 127.0F)));
    }
    check(layer);
    // What lies in the middle of two levels and is not ruled out must fire in earnest: these pairs
    // do, by more than f32 may err.
    const DeviceScreenOf<TypeParam> screen(layer);
    const ref::Matrix g = check_gemm(screen_plan(layer), layer, 16, screen.view);
    for (std::int64_t p = 0; p < 2 * kPairs; ++p) EXPECT_GT(g.at(p, p), 0.25);
  }
}

// Sums that 8 bits hold exactly, at the threshold and a step of the weight beside it.
TYPED_TEST(CudaScreenTest, AtTheThreshold) {
  TWELL_NEEDS_GPU();
  CudaLayer<TypeParam> layer({4, 64, 96, true, {Activation::fat_relu, 3.0F}});
  layer.x.fill([](std::int64_t r, std::int64_t k) {
    return static_cast<float>(k == 0 ? 127 : (k * 7 + r) % 5 - 2);
  });
  for (std::int64_t n = 0; n < 96; ++n) {
    for (std::int64_t k = 0; k < 64; ++k) {
      layer.gate.set(n, k, static_cast<float>(k == 63 ? 127 : (k * 3 + n) % 7 - 3));
    }
  }
  // The last two inputs bring each sum to 2, 3 or 4: of token 0, where x is 1 and 2 there.
  layer.x.set(0, 62, 1.0F);
  layer.x.set(0, 61, 64.0F);
  for (std::int64_t n = 0; n < 96; ++n) {
    layer.gate.set(n, 61, 0.0F);
    layer.gate.set(n, 62, 0.0F);
    double sum = 0;
    for (std::int64_t k = 0; k < 64; ++k) sum += layer.x.value(0, k) * layer.gate.value(n, k);
    const double left = static_cast<double>(2 + n % 3) - sum;
    const double large = std::nearbyint(left / 64);
    layer.gate.set(n, 61, static_cast<float>(large));
    layer.gate.set(n, 62, static_cast<float>(left - 64 * large));
  }
  const DeviceScreenOf<TypeParam> screen(layer);
  const ref::Matrix g = check_gemm(screen_plan(layer), layer, 16, screen.view);
  for (std::int64_t n = 0; n < 96; ++n) EXPECT_EQ(g.at(0, n), n % 3 == 2 ? 4.0 : 0.0) << n;
  check(layer);
}

TYPED_TEST(CudaScreenTest, LargeChannelsAndSpecialTokens) {
  TWELL_NEEDS_GPU();
  CudaLayer<TypeParam> layer({12, 536, 70, true, {}, 2.0F});
  for (std::int64_t r = 0; r < 12; ++r) {
    layer.x.set(r, 300, 80.0F);
    layer.x.set(r, 517, -400.0F);
  }
  const bool wide = std::is_same_v<TypeParam, bf16>;
  for (std::int64_t k = 0; k < 536; ++k) {
    layer.x.set(1, k, 0.0F);
    layer.x.set(2, k, k == 77 ? 3.0F : 0.0F);
    layer.x.set(3, k, (wide ? 1e-37F : 1e-6F) * layer.x.value(3, k));  // in part denormal
    layer.x.set(4, k, (wide ? 1e20F : 100.0F) * layer.x.value(4, k));
    layer.x.set(5, k, layer.x.value(0, k));
    layer.gate.set(3, k, 0.0F);
    layer.gate.set(4, k, (wide ? 1e-36F : 1e-6F) * layer.gate.value(4, k));
    layer.gate.set(5, k, k == 77 ? 1.0F : 0.0F);
    layer.gate.set(6, k, layer.gate.value(7, k));
    layer.gate.set(8, k, (wide ? 1e14F : 100.0F) * layer.gate.value(8, k));
  }
  check(layer);
}

// f16 ends at 65,504: activations past it become infinite, and x and W may be as large.
TYPED_TEST(CudaScreenTest, LargeValues) {
  TWELL_NEEDS_GPU();
  CudaLayer<TypeParam> layer({6, 264, 40, true, {Activation::relu_squared, 0.0F}, 0.0F});
  for (std::int64_t k = 0; k < 264; ++k) {
    for (std::int64_t n = 0; n < 20; ++n) {
      layer.gate.set(n, k, 60000.0F * std::clamp(layer.gate.value(n, k), -1.0F, 1.0F));
    }
    for (std::int64_t r = 0; r < 3; ++r) {
      layer.x.set(r, k, 60000.0F * std::clamp(layer.x.value(r, k), -1.0F, 1.0F));
    }
  }
  check(layer);
}

TYPED_TEST(CudaScreenTest, NanAndInfinityAreNeverRuledOut) {
  TWELL_NEEDS_GPU();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
    for (const std::int64_t padding : {0, 3}) {
      CudaLayer<TypeParam> layer({10, 80, 45, true, {}, 3.0F, padding});
      layer.x.set(2, 5, bad);
      layer.gate.set(9, 1, bad);
      layer.gate.set(44, 79, bad);
      for (std::int64_t k = 0; k < 80; ++k) layer.gate.set(11, k, 0.0F);
      for (std::int64_t k = 0; k < 80; ++k) layer.x.set(4, k, 0.0F);
      check(layer);
    }
  }
  // With zeros where the bad value is: 0 · ∞.
  CudaLayer<TypeParam> layer({2, 8, 3});
  layer.x.fill([](std::int64_t r, std::int64_t k) { return r == 0 && k == 3 ? kInfinity : 0.0F; });
  layer.gate.fill([](std::int64_t n, std::int64_t) { return n == 0 ? 0.0F : -1.0F; });
  layer.gate.set(2, 5, kInfinity);
  check(layer);
}

// Where squares vanish, products overflow, or f32 holds no bound.
TYPED_TEST(CudaScreenTest, TheEndsOfTheRangeAreNeverRuledOut) {
  TWELL_NEEDS_GPU();
  if constexpr (std::is_same_v<TypeParam, bf16>) {
    for (const float f : {1e-37F, 1e-30F, 1e-25F, 1e12F, 1e30F}) {
      for (const bool of_x : {true, false}) {
        CudaLayer<TypeParam> layer({1, 256, 1});
        // Fires by less than 8 bits show of it.
        layer.x.fill([](std::int64_t, std::int64_t k) { return k == 0 ? -0.9F : 1.0F; });
        layer.gate.fill([](std::int64_t, std::int64_t k) { return k == 0 ? 127.0F : 0.49F; });
        for (std::int64_t k = 0; k < 256; ++k) {
          TestMatrix<TypeParam>& scaled = of_x ? layer.x : layer.gate;
          scaled.set(0, k, f * scaled.value(0, k));
        }
        EXPECT_EQ(candidates_of(layer, {}), 1) << f << of_x;
        EXPECT_EQ(candidates_of(layer, row_of(layer.x, 0)), 1) << f << of_x;
      }
    }
  }
}

// An axis of any kind changes how much is ruled out, and nothing else.
TYPED_TEST(CudaScreenTest, AnyAxisGivesTheSameBits) {
  TWELL_NEEDS_GPU();
  const CudaLayer<TypeParam> layer({9, 296, 50, true, {}, 1.5F});
  const cuda::GemmPlan plan = screen_plan(layer);
  const ref::Matrix expected = check_gemm(plan, layer, 32, DeviceScreenOf<TypeParam>(layer).view);
  for (const float value : {1e30F, -1.0F, 1e-30F, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> axis(296, value);
    axis[7] = 0.5F;
    const DeviceScreenOf<TypeParam> screen(layer, axis);
    const ref::Matrix got = check_gemm(plan, layer, 32, screen.view);
    for (std::int64_t r = 0; r < 9; ++r) {
      for (std::int64_t n = 0; n < 50; ++n) ASSERT_EQ(got.at(r, n), expected.at(r, n)) << value;
    }
  }
}

// It has a purpose: at 1 % few neurons are left, no fewer than fire, and fewer with the axis.
TYPED_TEST(CudaScreenTest, RulesMostOut) {
  TWELL_NEEDS_GPU();
  CudaLayer<TypeParam> layer({16, 1024, 256, false, {}, 0.0F});
  for (std::int64_t k = 0; k < 64; ++k) {  // a direction that all tokens share
    for (std::int64_t r = 0; r < 16; ++r) layer.x.set(r, k, 1.0F);
    for (std::int64_t n = 0; n < 256; ++n) layer.gate.set(n, k, -2.3F / 64);
  }
  std::int64_t fired = 0;
  for (std::int64_t r = 0; r < 16; ++r) {
    for (std::int64_t n = 0; n < 256; ++n) {
      double sum = 0;
      for (std::int64_t k = 0; k < 1024; ++k) sum += layer.x.value(r, k) * layer.gate.value(n, k);
      fired += sum > 0;
    }
  }
  const std::int64_t all = std::int64_t{16} * 256;
  EXPECT_GT(fired, all / 200);
  const std::int64_t with = candidates_of(layer, mean_of(layer.x));
  const std::int64_t without = candidates_of(layer, {});
  EXPECT_GE(with, fired);
  EXPECT_LT(with, 4 * fired);
  EXPECT_LT(with, without);
}

TYPED_TEST(CudaScreenTest, WholeLayers) {
  TWELL_NEEDS_GPU();
  for (const std::int64_t tokens : {1, 4, 17, 32}) {
    for (const bool gated : {true, false}) {
      const CudaLayer<TypeParam> layer({tokens, 264, 200, gated});
      const DeviceScreenOf<TypeParam> screen(layer, mean_of(layer.x));
      FfnOptions options;
      options.shape = cuda::GemmShape::screen32x32;
      options.screen = screen.view;
      check_ffn(layer, options);
    }
  }
}

// What pads a screen is written, so that two of them are the same bytes.
TYPED_TEST(CudaScreenTest, EveryByteOfAScreenIsWritten) {
  TWELL_NEEDS_GPU();
  const CudaLayer<TypeParam> layer({1, 88, 35});
  const DeviceScreenOf<TypeParam> one(layer, mean_of(layer.x)), two(layer, mean_of(layer.x));
  EXPECT_EQ(one.read(), two.read());
  // Padding neurons and inputs are levels of zero; the buffer's own bytes are all ones.
  const auto bytes = one.read();
  std::size_t ones = 0;
  for (std::size_t i = 0; i < std::size_t{2} * 2 * 2048; ++i) ones += bytes[i] == std::byte{0xff};
  EXPECT_LT(ones, std::size_t{35} * 88 / 8);
}

TEST(CudaScreen, ArgumentsAreChecked) {
  TWELL_NEEDS_GPU();
  const CudaLayer<bf16> layer({2, 64, 40});
  const DeviceScreenOf<bf16> screen(layer);
  const DeviceMatrixOf<bf16> x(layer.x), gate(layer.gate);
  const cuda::GemmPlan plan = screen_plan(layer);
  const DevicePacked packed({2, 40, plan.tile, plan.tile, DType::bf16});
  const auto run = [&](const ScreenView& view) {
    return message_of([&] {
      cuda::gemm_relu_twell(plan, x.view(), gate.view(), {}, packed.view, {}, nullptr, view);
    });
  };
  EXPECT_EQ(run(screen.view), "");
  EXPECT_EQ(
      run({}),
      "twell::cuda::gemm_relu_twell: screen: expected that of the gate, since the plan is for "
      "one, got none");
  ScreenView other = screen.view;
  other.rows = 41;
  EXPECT_EQ(
      run(other),
      "twell::cuda::gemm_relu_twell: screen: expected that of [40, 64], got that of [41, 64]");
  // python/twell/_fake.py has the same size: tests/python/test_compile.py.
  EXPECT_EQ(cuda::screen_bytes(100, 40), 10752U);
  const std::vector<std::byte> on_host(cuda::screen_bytes(40, 64));
  EXPECT_NE(run({on_host.data(), 40, 64}).find("screen: expected memory of the GPU"),
            std::string::npos);

  const DeviceBuffer<std::byte> memory(cuda::screen_bytes(40, 64));
  const auto make = [&](ConstMatrixView weight, const float* axis, cuda::Workspace to) {
    return message_of([&] { cuda::make_screen(weight, axis, to, nullptr); });
  };
  const cuda::Workspace room{memory.data(), memory.size()};
  EXPECT_EQ(make(gate.view(), nullptr, room), "");
  EXPECT_NE(make(gate.view(), nullptr, {memory.data(), memory.size() - 1})
                .find("cuda::make_screen: memory: expected "),
            std::string::npos);
  const std::vector<float> axis(64);
  EXPECT_NE(make(gate.view(), axis.data(), room).find("axis: expected memory of the GPU"),
            std::string::npos);
  ConstMatrixView wrong = gate.view();
  wrong.dtype = DType::f32;
  EXPECT_EQ(make(wrong, nullptr, room),
            "twell::cuda::make_screen: weight: expected bf16 or f16, got f32");

  const cuda::Device device = cuda::current_device();
  cuda::Problem problem = layer.problem();
  const auto planned = [&](std::int32_t tile) {
    return message_of(
        [&] { cuda::plan_gemm_relu_twell(cuda::GemmShape::screen32x32, device, problem, tile); });
  };
  EXPECT_NE(planned(0).find("got an unscreened gate, 2 rows, 64 inputs"), std::string::npos);
  problem.screened = true;
  EXPECT_EQ(planned(16), "");
  EXPECT_NE(planned(64).find("a tile of 16 or 32"), std::string::npos);
  problem.tokens = 33;
  EXPECT_NE(planned(0).find("got a screened gate, 33 rows"), std::string::npos);
  problem.candidates = 1.5;
  EXPECT_NE(planned(0).find("candidates: expected a share of 0 to 1"), std::string::npos);
}

}  // namespace
}  // namespace twell
