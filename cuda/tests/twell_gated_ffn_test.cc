// twell_gated_ffn and twell_spmm against the fp64 definition.
#include "cuda/tests/support/gpu.h"
#include "cuda/tests/support/layer.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

template <class T>
class CudaGatherTest : public testing::Test {
 protected:
  // With one block a row, with as many as the plan takes, and with more than there are neurons.
  static void check(const CudaLayer<T>& layer, const TestMatrix<T>& gate, std::int32_t tile,
                    std::int32_t capacity) {
    cuda::GatherPlan plan = cuda::plan_gather(cuda::current_device(), layer.problem());
    const int planned = plan.splits;
    for (int splits : {1, planned, 5}) {
      plan.splits = splits;
      check_gather(plan, layer, gate, tile, capacity);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
};
using Types = testing::Types<bf16, Half>;
TYPED_TEST_SUITE(CudaGatherTest, Types);

TYPED_TEST(CudaGatherTest, AdversarialPatterns) {
  TWELL_NEEDS_GPU();
  for (Pattern pattern : kAllPatterns) {
    for (std::int64_t tokens : {1, 3}) {
      for (bool gated : {true, false}) {
        const CudaLayer<TypeParam> layer({tokens, 72, 530, gated});
        const auto gate = activation_matrix<TypeParam>(pattern, tokens, 530, 4);
        this->check(layer, gate, 256, 8);
      }
    }
  }
}

TYPED_TEST(CudaGatherTest, TailSizes) {
  TWELL_NEEDS_GPU();
  const CudaCase cases[] = {{1, 8, 1}, {2, 24, 17}, {1, 136, 300}, {17, 40, 33}};
  for (const CudaCase& c : cases) {
    const CudaLayer<TypeParam> layer(c);
    this->check(layer, activation_matrix<TypeParam>(Pattern::random50, c.tokens, c.neurons, 3), 32,
                9);
  }
}

TYPED_TEST(CudaGatherTest, RowsThatAreNotAligned) {
  TWELL_NEEDS_GPU();
  CudaCase cases[] = {{1, 1, 5}, {3, 13, 40}, {2, 77, 90, false}, {2, 72, 40}};
  for (CudaCase& c : cases) {
    c.padding = 5;
    const CudaLayer<TypeParam> layer(c);
    this->check(layer, activation_matrix<TypeParam>(Pattern::random50, c.tokens, c.neurons, 3), 64,
                64);
  }
}

// Wider than what a warp reads of x at a time, and than a block accumulates.
TYPED_TEST(CudaGatherTest, WideRows) {
  TWELL_NEEDS_GPU();
  for (std::int64_t depth : {2056, 8248}) {
    const CudaLayer<TypeParam> layer({1, depth, 20});
    this->check(layer, activation_matrix<TypeParam>(Pattern::random50, 1, 20, 3), 32, 32);
  }
}

// More tiles than a block scans at a time, more neurons than its window holds.
TYPED_TEST(CudaGatherTest, ManyTilesAndNeurons) {
  TWELL_NEEDS_GPU();
  const std::int64_t neurons = 16 * 1024 + 100;
  const CudaLayer<TypeParam> layer({2, 8, neurons});
  auto gate = activation_matrix<TypeParam>(Pattern::random1, 2, neurons, 3);
  for (std::int64_t n = 5000; n < 5700; ++n) gate.set(1, n, 1.0F);
  this->check(layer, gate, 16, 5);
}

TYPED_TEST(CudaGatherTest, NanAndInfinity) {
  TWELL_NEEDS_GPU();
  CudaLayer<TypeParam> layer({3, 24, 40});
  auto gate = activation_matrix<TypeParam>(Pattern::shared, 3, 40, 3);
  gate.set(0, 3, std::numeric_limits<float>::quiet_NaN());
  gate.set(1, 10, std::numeric_limits<float>::infinity());
  // Of a neuron that is not active: not touched.
  layer.up.set(4, 0, std::numeric_limits<float>::quiet_NaN());
  layer.down.set(5, 0, std::numeric_limits<float>::infinity());
  this->check(layer, gate, 16, 4);
}

}  // namespace
}  // namespace twell
