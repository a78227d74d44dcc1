// gemm_relu_twell in every shape it is built in, against the fp64 definition.
#include "cuda/tests/support/gpu.h"
#include "cuda/tests/support/layer.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

constexpr cuda::GemmShape kShapes[] = {cuda::GemmShape::stream8x16,  cuda::GemmShape::stream16x32,
                                       cuda::GemmShape::stream32x32, cuda::GemmShape::tile64x64,
                                       cuda::GemmShape::tile128x128, cuda::GemmShape::library};

template <class T>
class CudaGemmTest : public testing::Test {
 protected:
  // Every shape that takes the case and fits the device.
  static void check(const CudaLayer<T>& layer, std::int32_t tile, std::int32_t capacity) {
    const cuda::Device device = cuda::current_device();
    int checked = 0;
    for (cuda::GemmShape shape : kShapes) {
      cuda::GemmPlan plan;
      try {
        plan = cuda::plan_gemm_relu_twell(shape, device, layer.problem(), tile);
      } catch (const Error&) {
        continue;  // more rows, another alignment or a wider tile than the shape has
      }
      if (plan.shared_bytes > device.shared_bytes) continue;
      check_gemm(plan, layer, std::min(capacity, plan.tile));
      checked += 1;
    }
    EXPECT_GT(checked, 0) << describe(layer.shape);
  }
};
using Types = testing::Types<bf16, Half>;
TYPED_TEST_SUITE(CudaGemmTest, Types);

TYPED_TEST(CudaGemmTest, TailSizes) {
  TWELL_NEEDS_GPU();
  const CudaCase cases[] = {
      {1, 8, 1}, {1, 72, 300}, {2, 264, 17}, {7, 24, 33}, {8, 600, 40}, {17, 72, 300},
  };
  for (const CudaCase& c : cases) this->check(CudaLayer<TypeParam>(c), 0, 32);
}

// More blocks than one in both directions, more steps than pipeline stages.
TYPED_TEST(CudaGemmTest, ManyBlocks) {
  TWELL_NEEDS_GPU();
  for (const CudaCase& c : {CudaCase{129, 72, 300}, CudaCase{70, 328, 70}}) {
    this->check(CudaLayer<TypeParam>(c), 0, 16);
  }
}

TYPED_TEST(CudaGemmTest, RowsThatAreNotAligned) {
  TWELL_NEEDS_GPU();
  CudaCase cases[] = {{1, 1, 5}, {9, 13, 40}, {70, 75, 70}, {33, 72, 65}};
  for (CudaCase& c : cases) {
    c.padding = 3;
    this->check(CudaLayer<TypeParam>(c), 0, 8);
  }
}

TYPED_TEST(CudaGemmTest, PaddedRows) {
  TWELL_NEEDS_GPU();
  this->check(CudaLayer<TypeParam>({5, 40, 50, true, {}, 1.0F, 16}), 0, 32);
}

TYPED_TEST(CudaGemmTest, EveryDensityAndCapacity) {
  TWELL_NEEDS_GPU();
  for (float shift : {20.0F, 2.0F, 0.0F, -20.0F}) {
    const CudaLayer<TypeParam> layer({6, 40, 270, true, {}, shift});
    for (std::int32_t capacity : {1, 15, 64}) this->check(layer, 0, capacity);
  }
}

TYPED_TEST(CudaGemmTest, EveryTileWidth) {
  TWELL_NEEDS_GPU();
  const CudaLayer<TypeParam> layer({11, 24, 500, true, {}, 0.5F});
  for (std::int32_t tile : {16, 32, 48, 64, 128, 256, 512}) this->check(layer, tile, 12);
}

// Exactly capacity - 1, capacity and capacity + 1 non-zeros, and one past the inline room.
TYPED_TEST(CudaGemmTest, AroundTheCapacity) {
  TWELL_NEEDS_GPU();
  CudaLayer<TypeParam> layer({3, 8, 256});
  for (std::int64_t k = 0; k < 8; ++k) {
    for (std::int64_t r = 0; r < 3; ++r) layer.x.set(r, k, k == r ? 1.0F : 0.0F);
  }
  for (std::int64_t n = 0; n < 256; ++n) {
    for (std::int64_t k = 0; k < 8; ++k) layer.gate.set(n, k, 0.0F);
    // Row r has 8 + r - 1 non-zeros in every 16 columns.
    for (std::int64_t r = 0; r < 3; ++r) layer.gate.set(n, r, n % 16 < 7 + r ? 2.0F : -1.0F);
  }
  this->check(layer, 16, 8);
  this->check(layer, 0, 8);
}

TYPED_TEST(CudaGemmTest, EveryActivation) {
  TWELL_NEEDS_GPU();
  for (Activation kind : {Activation::relu, Activation::relu_squared, Activation::fat_relu}) {
    this->check(CudaLayer<TypeParam>(
                    {9, 72, 70, true, {kind, kind == Activation::fat_relu ? 0.25F : 0.0F}, 0.5F}),
                0, 32);
  }
}

TYPED_TEST(CudaGemmTest, NanInfinityAndNegativeZero) {
  TWELL_NEEDS_GPU();
  for (std::int64_t padding : {0, 3}) {
    // H is no multiple of any tile: padding neurons must not turn into NaN activations.
    CudaLayer<TypeParam> layer({10, 40, 83, true, {}, 1.0F, padding});
    layer.x.set(0, 5, std::numeric_limits<float>::quiet_NaN());
    layer.x.set(1, 5, std::numeric_limits<float>::infinity());
    layer.gate.set(7, 1, -std::numeric_limits<float>::infinity());
    layer.gate.set(82, 3, std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t k = 0; k < 40; ++k) layer.x.set(2, k, -0.0F);
    this->check(layer, 0, 4);
  }
}

// Values that overflow f16 become infinite and stay; those that underflow to zero are not stored.
TYPED_TEST(CudaGemmTest, RoundingToInfinityAndToZero) {
  TWELL_NEEDS_GPU();
  CudaLayer<TypeParam> layer({4, 8, 20, true, {Activation::relu_squared, 0.0F}, 0.0F});
  for (std::int64_t n = 0; n < 20; ++n) {
    for (std::int64_t k = 0; k < 8; ++k) layer.gate.set(n, k, n % 2 == 0 ? 120.0F : 0x1p-13F);
  }
  for (std::int64_t r = 0; r < 4; ++r) {
    for (std::int64_t k = 0; k < 8; ++k)
      layer.x.set(r, k, k == 1 ? 4.0F * static_cast<float>(r) : 0.0F);
  }
  this->check(layer, 0, 4);
}

TYPED_TEST(CudaGemmTest, NoRows) {
  TWELL_NEEDS_GPU();
  const CudaLayer<TypeParam> layer({0, 16, 20});
  check_gemm(cuda::plan_gemm_relu_twell(cuda::current_device(), layer.problem()), layer, 8);
}

}  // namespace
}  // namespace twell
