// The whole layer, the errors, and two plans side by side.
#include "cuda/tests/support/ffn.h"

#include "cuda/tests/support/gpu.h"
#include "tests/support/message_of.h"
#include "twell/status.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

template <class T>
class CudaFfnTest : public testing::Test {};
using Types = testing::Types<bf16, Half>;
TYPED_TEST_SUITE(CudaFfnTest, Types);

TYPED_TEST(CudaFfnTest, SizesAndActivations) {
  TWELL_NEEDS_GPU();
  const CudaCase cases[] = {
      {1, 8, 1},
      {1, 72, 300, false, {Activation::relu_squared, 0.0F}},
      {5, 24, 17, true, {Activation::fat_relu, 0.5F}, 0.0F},
      {17, 40, 70},
      {40, 72, 130, true, {}, -20.0F},
      {3, 13, 29, true, {}, 0.0F, 1},
      {35, 21, 66, false, {}, 0.0F, 2},
  };
  for (const CudaCase& c : cases) check_ffn(CudaLayer<TypeParam>(c));
}

// A workspace for 128 rows at most: the call takes several blocks of rows, the last a short one.
TYPED_TEST(CudaFfnTest, BlocksOfRows) {
  TWELL_NEEDS_GPU();
  FfnOptions options;
  options.workspace_limit = 1;
  check_ffn(CudaLayer<TypeParam>({140, 16, 40}), options);
}

// Enough neurons that blocks share a row; the GEMM clears the counters they meet at. The second
// call finds what the first left there.
TYPED_TEST(CudaFfnTest, BlocksThatShareARow) {
  TWELL_NEEDS_GPU();
  for (std::int64_t tokens : {1, 2}) {
    const CudaLayer<TypeParam> layer({tokens, 16, 1100, true, {}, 0.5F});
    ASSERT_GT(cuda::plan_ffn(cuda::current_device(), layer.problem()).gather.splits, 1);
    check_ffn(layer);
  }
}

TYPED_TEST(CudaFfnTest, NoRows) {
  TWELL_NEEDS_GPU();
  check_ffn(CudaLayer<TypeParam>({0, 16, 40}));
}

TEST(CudaErrors, NameOperationAndArgument) {
  TWELL_NEEDS_GPU();
  const CudaLayer<bf16> layer({4, 16, 64});
  OnDevice<bf16> on(layer);
  const cuda::FfnPlan plan = cuda::plan_ffn(cuda::current_device(), layer.problem());
  DeviceBuffer<std::byte> memory(plan.workspace_bytes);
  const cuda::Workspace workspace{memory.data(), memory.size()};
  const auto run = [&](ConstMatrixView x, const FfnWeights& weights, MatrixView y,
                       const cuda::Workspace& given, const ActivationSpec& activation = {}) {
    return message_of([&] { cuda::ffn(plan, x, weights, activation, y, given, nullptr); });
  };
  const auto x = on.x.view();
  const auto y = on.y.mutable_view();
  EXPECT_EQ(run(x, on.weights(), y, workspace), "");

  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" lacks " << part;
  };
  auto other = x;
  other.dtype = DType::f16;
  has(run(other, on.weights(), y, workspace), "cuda::ffn: x: expected bf16 [4, 16], got f16");
  other = x;
  other.rows = 3;
  has(run(other, on.weights(), y, workspace), "x: expected bf16 [4, 16], got bf16 [3, 16]");
  other = x;
  other.row_stride = 8;
  has(run(other, on.weights(), y, workspace), "x: expected a row stride of at least 16");
  other = x;
  other.data = static_cast<const bf16*>(x.data) + 1;
  has(run(other, on.weights(), y, workspace), "x: expected address and row stride to be multiples");
  auto weights = on.weights();
  weights.down = std::as_const(layer.down).view();
  has(run(x, weights, y, workspace), "down: expected memory of the GPU, got host memory");
  weights = on.weights();
  weights.up = {};
  has(run(x, weights, y, workspace), "up: expected it");
  weights = on.weights();
  weights.gate.data = nullptr;
  has(run(x, weights, y, workspace), "gate: expected device memory, got a null pointer");
  has(run(x, on.weights(), y, {memory.data(), 16}), "workspace: expected ");
  has(run(x, on.weights(), y, workspace, {Activation::fat_relu, -1.0F}), "activation: expected");
}

TEST(CudaErrors, CallsThatFailNameThemselves) {
  TWELL_NEEDS_GPU();
  void* pointer = nullptr;
  try {
    TWELL_CUDA_CHECK(cudaMalloc(&pointer, std::size_t{1} << 50));
    FAIL() << "a petabyte was allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::out_of_memory);
    const std::string message = error.what();
    EXPECT_NE(message.find("cudaMalloc"), std::string::npos) << message;
    EXPECT_NE(message.find("ffn_test.cc:"), std::string::npos) << message;
  }
  // The failure is not met again by what comes after it.
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CudaErrors, DeviceThatIsNotThere) {
  TWELL_NEEDS_GPU();
  EXPECT_NE(message_of([] { cuda::device(99); }).find("ordinal: expected 0 to"), std::string::npos);
}

}  // namespace
}  // namespace twell
