// dense_to_twell and twell_to_dense: exact, and the format's rules kept.
#include "cuda/tests/support/gpu.h"
#include "cuda/tests/support/layer.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

template <class T>
class CudaDenseTest : public testing::Test {};
using Types = testing::Types<bf16, Half>;
TYPED_TEST_SUITE(CudaDenseTest, Types);

TYPED_TEST(CudaDenseTest, RoundTripOfEveryPatternAndCapacity) {
  TWELL_NEEDS_GPU();
  for (const Pattern pattern : kAllPatterns) {
    for (const std::int32_t capacity : {1, 8, 32}) {
      const TwellLayout layout{3, 77, 32, capacity, dtype_of<TypeParam>::value};
      SCOPED_TRACE("capacity " + std::to_string(capacity));
      const auto source = activation_matrix<TypeParam>(pattern, layout.rows, layout.cols, 4);
      const DeviceMatrixOf<TypeParam> dense(source);
      const DevicePacked packed(layout);
      cuda::dense_to_twell(dense.view(), packed.view, nullptr);
      DeviceMatrixOf<TypeParam> back(TestMatrix<TypeParam>(layout.rows, layout.cols, 5));
      back.poison();
      cuda::twell_to_dense(packed.view, back.mutable_view(), nullptr);
      TWELL_CUDA_CHECK(cudaDeviceSynchronize());
      const ref::Matrix held = unpacked<TypeParam>(packed);
      const auto values = back.read();
      for (std::int64_t r = 0; r < layout.rows; ++r) {
        for (std::int64_t c = 0; c < layout.cols; ++c) {
          const double want = source.value(r, c);
          ASSERT_TRUE(same_special(held.at(r, c), want)) << At{r, c};
          ASSERT_TRUE(same_special(back.value(values, r, c), want)) << At{r, c};
        }
      }
    }
  }
}

TYPED_TEST(CudaDenseTest, NoRowsAndWrongArguments) {
  TWELL_NEEDS_GPU();
  const TwellLayout none{0, 20, 16, 16, dtype_of<TypeParam>::value};
  const DevicePacked empty(none);
  cuda::dense_to_twell({nullptr, none.dtype, 0, 20}, empty.view, nullptr);
  const TwellLayout layout{2, 20, 16, 16, dtype_of<TypeParam>::value};
  const DevicePacked packed(layout);
  const DeviceMatrixOf<TypeParam> wide(TestMatrix<TypeParam>(2, 21));
  EXPECT_THROW(cuda::dense_to_twell(wide.view(), packed.view, nullptr), Error);
  EXPECT_THROW(cuda::dense_to_twell({nullptr, layout.dtype, 2, 20}, packed.view, nullptr), Error);
}

}  // namespace
}  // namespace twell
