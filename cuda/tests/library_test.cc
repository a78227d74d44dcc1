// The layer around a library's GEMMs: packing from a dense gate, hot neurons, rows in chunks.
#include <algorithm>

#include "cuda/tests/support/ffn.h"
#include "cuda/tests/support/gpu.h"
#include "tests/support/message_of.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

template <class T>
class CudaLibraryTest : public testing::Test {
 protected:
  static void check(const CudaLayer<T>& layer, std::int64_t hot, FfnOptions options = {}) {
    options.shape = cuda::GemmShape::library;
    options.hot = hot;
    check_ffn(layer, options);
  }
};
using Types = testing::Types<bf16, Half>;
TYPED_TEST_SUITE(CudaLibraryTest, Types);

TYPED_TEST(CudaLibraryTest, SizesAndActivations) {
  TWELL_NEEDS_LIBRARY();
  const CudaCase cases[] = {
      {1, 8, 1},
      {1, 72, 300, false, {Activation::relu_squared, 0.0F}},
      {5, 24, 17, true, {Activation::fat_relu, 0.5F}, 0.0F},
      {67, 40, 70},
      {40, 72, 130, true, {}, -20.0F},
      {3, 13, 29, true, {}, 0.0F, 1},
      {35, 21, 66, false, {}, 0.0F, 2},
      {70, 24, 530, true, {}, 20.0F},
  };
  for (const CudaCase& c : cases) this->check(CudaLayer<TypeParam>(c), 0);
}

// From 64 rows on a plan takes any number of hot neurons; all of them for any number of rows.
TYPED_TEST(CudaLibraryTest, HotNeurons) {
  TWELL_NEEDS_LIBRARY();
  for (const bool gated : {true, false}) {
    for (const float shift : {2.0F, 0.0F, -20.0F}) {
      const CudaLayer<TypeParam> layer({66, 24, 101, gated, {}, shift});
      for (const std::int64_t hot : {8, 32, 101}) this->check(layer, hot);
    }
  }
  this->check(CudaLayer<TypeParam>({65, 13, 40, true, {}, 0.5F, 1}), 16);
  this->check(CudaLayer<TypeParam>({1, 40, 30}), 30);
  this->check(CudaLayer<TypeParam>({3, 13, 30, false, {}, 0.0F, 3}), 30);
  for (const ActivationSpec& activation : {ActivationSpec{Activation::relu_squared, 0.0F},
                                           ActivationSpec{Activation::fat_relu, 0.5F}}) {
    const CudaLayer<TypeParam> layer({64, 16, 64, true, activation, 0.0F});
    this->check(layer, 16);
    this->check(layer, 64);
  }
}

// Several blocks of rows in the workspace, several blocks of each in the GEMM.
TYPED_TEST(CudaLibraryTest, BlocksOfRows) {
  TWELL_NEEDS_LIBRARY();
  FfnOptions options;
  options.workspace_limit = 1;
  const CudaLayer<TypeParam> layer({300, 16, 72, true, {}, 0.5F});
  for (const std::int64_t hot : {0, 24, 72}) this->check(layer, hot, options);
}

// Rows in chunks, with room for all their sums, for some and for none.
TYPED_TEST(CudaLibraryTest, RowsInChunks) {
  TWELL_NEEDS_LIBRARY();
  CudaLayer<TypeParam> layer({66, 24, 700, true, {}, 2.0F});
  // Two rows fire everything, one nothing.
  for (const std::int64_t row : {3, 65}) layer.x.set(row, 0, -20.0F);
  layer.x.set(7, 0, 20.0F);
  for (const int partials : {2048, 40, 0}) {
    FfnOptions options;
    options.chunk = 8;
    options.partials = partials;
    this->check(layer, 0, options);
    options.chunk = 256;
    this->check(layer, 64, options);
  }
}

// Wider than a block accumulates: each pass of columns takes the queue's items for itself.
TYPED_TEST(CudaLibraryTest, WideRows) {
  TWELL_NEEDS_LIBRARY();
  CudaLayer<TypeParam> layer({2, 8248, 40, true, {}, 0.5F});
  layer.x.set(1, 0, -20.0F);
  FfnOptions options;
  options.chunk = 8;
  this->check(layer, 0, options);
}

// The room for sums changes who adds them, not what they come to.
TYPED_TEST(CudaLibraryTest, SharedAndUnsharedRowsHaveTheSameBits) {
  TWELL_NEEDS_LIBRARY();
  CudaLayer<TypeParam> layer({70, 40, 600, true, {}, 1.0F});
  layer.x.set(2, 0, -20.0F);
  OnDevice<TypeParam> on(layer);
  FfnOptions options;
  options.shape = cuda::GemmShape::library;
  options.chunk = 16;
  options.hot = 40;
  std::vector<TypeParam> first;
  for (const int partials : {2048, 5, 0}) {
    options.partials = partials;
    const cuda::FfnPlan plan = plan_of(on, layer, options);
    DeviceBuffer<std::byte> memory(plan.workspace_bytes);
    on.y.poison();
    cuda::ffn(plan, on.x.view(), on.weights(), {}, on.y.mutable_view(),
              {memory.data(), memory.size()}, nullptr);
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
    const std::vector<TypeParam> y = on.y.read();
    if (first.empty()) first = y;
    ASSERT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(TypeParam)), 0) << partials;
  }
}

// A token that does not fire a neuron does not see it, hot or not: neither an infinite u nor a NaN
// in its row of up.
TYPED_TEST(CudaLibraryTest, HotNeuronsAreMaskedExactly) {
  TWELL_NEEDS_LIBRARY();
  CudaLayer<TypeParam> layer({64, 16, 48, true, {}, 0.5F});
  for (std::int64_t k = 0; k < 16; ++k) {
    layer.up.set(3, k, std::numeric_limits<float>::quiet_NaN());
    layer.up.set(40, k, std::numeric_limits<float>::infinity());
  }
  // Neurons that no token fires.
  for (const std::int64_t n : {3, 40}) layer.gate.set(n, 0, -100.0F);
  FfnOptions options;
  for (const bool joined : {false, true}) {
    options.joined = joined;
    for (const std::int64_t hot : {0, 16, 48}) this->check(layer, hot, options);
  }
}

// Gate and up one matrix: their GEMM is one as well, where H is a multiple of 8.
TYPED_TEST(CudaLibraryTest, JoinedUp) {
  TWELL_NEEDS_LIBRARY();
  FfnOptions options;
  options.joined = true;
  const CudaLayer<TypeParam> some({66, 24, 104, true, {}, 0.5F});
  for (const std::int64_t hot : {0, 8, 30, 104}) this->check(some, hot, options);
  this->check(CudaLayer<TypeParam>({64, 8, 24, true, {}, -20.0F}), 16, options);
  // Any other H; rows of D that no vector divides, one after the other and padded.
  for (const std::int64_t hot : {16, 53}) {
    this->check(CudaLayer<TypeParam>({66, 8, 53, true, {}, 0.5F}), hot, options);
  }
  for (const std::int64_t padding : {0, 3}) {
    const CudaLayer<TypeParam> layer({65, 13, 40, true, {}, 0.5F, padding});
    for (const std::int64_t hot : {16, 40}) this->check(layer, hot, options);
  }
  this->check(CudaLayer<TypeParam>({1, 40, 32}), 32, options);
  // The dense block is f32, and u is never rounded.
  for (const ActivationSpec& activation : {ActivationSpec{Activation::relu_squared, 0.0F},
                                           ActivationSpec{Activation::fat_relu, 0.5F}}) {
    const CudaLayer<TypeParam> layer({64, 16, 64, true, activation, 0.0F});
    for (const std::int64_t hot : {16, 64}) this->check(layer, hot, options);
  }
  // More columns than a warp loads ahead.
  this->check(CudaLayer<TypeParam>({64, 8, 600, true, {}, 1.5F}), 568, options);
  // Several parts of the rows, several blocks in each.
  options.workspace_limit = 1;
  const CudaLayer<TypeParam> layer({200, 8, 40, true, {}, 0.5F});
  for (const std::int64_t hot : {24, 40}) this->check(layer, hot, options);
}

// Small integers, which every way of summing gives exactly: y of joined weights has the bits of
// separate ones.
TYPED_TEST(CudaLibraryTest, JoinedAndSeparateUpHaveTheSameBits) {
  TWELL_NEEDS_LIBRARY();
  for (const ActivationSpec& activation :
       {ActivationSpec{}, ActivationSpec{Activation::fat_relu, 1.0F}}) {
    CudaLayer<TypeParam> layer({130, 24, 64, true, activation});
    const auto small = [](int most) {
      return [most](std::int64_t r, std::int64_t c) {
        return static_cast<float>((r * 7 + c * 5 + r * c) % (2 * most + 1) - most);
      };
    };
    layer.x.fill(small(1));
    for (TestMatrix<TypeParam>* weight : {&layer.gate, &layer.up, &layer.down}) {
      weight->fill(small(1));
    }
    for (const std::int64_t hot : {24, 64}) {
      std::vector<TypeParam> separate;
      for (const bool joined : {false, true}) {
        OnDevice<TypeParam> on(layer, joined);
        FfnOptions options;
        options.shape = cuda::GemmShape::library;
        options.hot = hot;
        const cuda::FfnPlan plan = plan_of(on, layer, options);
        EXPECT_EQ(plan.joined, joined);
        EXPECT_EQ(plan.gemm.block_cols, joined ? 64 + hot : 64);
        DeviceBuffer<std::byte> memory(plan.workspace_bytes);
        cuda::ffn(plan, on.x.view(), on.weights(), activation, on.y.mutable_view(),
                  {memory.data(), memory.size()}, nullptr);
        TWELL_CUDA_CHECK(cudaDeviceSynchronize());
        const std::vector<TypeParam> y = on.y.read();
        if (!joined) separate = y;
        ASSERT_EQ(std::memcmp(separate.data(), y.data(), y.size() * sizeof(TypeParam)), 0) << hot;
      }
      EXPECT_TRUE(std::any_of(separate.begin(), separate.end(),
                              [](TypeParam v) { return static_cast<float>(v) != 0.0F; }));
    }
  }
}

TEST(CudaLibrary, ErrorsNameWhatIsWrong) {
  TWELL_NEEDS_LIBRARY();
  const CudaLayer<bf16> layer({64, 16, 48});
  OnDevice<bf16> on(layer);
  FfnOptions options;
  options.shape = cuda::GemmShape::library;
  const cuda::FfnPlan plan = plan_of(on, layer, options);
  DeviceBuffer<std::byte> memory(plan.workspace_bytes);
  const cuda::Workspace workspace{memory.data(), memory.size()};
  const auto has = [](const std::string& message, const char* part) {
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" lacks " << part;
  };
  // The plan's gate is rounded before the activation.
  has(message_of([&] {
        cuda::ffn(plan, on.x.view(), on.weights(), {Activation::fat_relu, 0.5F},
                  on.y.mutable_view(), workspace, nullptr);
      }),
      "activation: expected relu, for which the plan is, got fat_relu");
  has(message_of([&] {
        cuda::ffn(plan, on.x.view(), on.weights(), {}, on.y.mutable_view(),
                  {memory.data(), memory.size() - 1}, nullptr);
      }),
      "workspace: expected ");
  cuda::FfnPlan elsewhere = plan;
  elsewhere.gather.device += 1;
  has(message_of([&] {
        cuda::ffn(elsewhere, on.x.view(), on.weights(), {}, on.y.mutable_view(), workspace,
                  nullptr);
      }),
      "plan: expected one for the current GPU");
  cuda::FfnPlan adjacent = plan;
  adjacent.problem.joined = true;
  FfnWeights apart = on.weights();  // where the allocator puts up, it may lie behind gate
  apart.up = apart.down;
  has(message_of([&] {
        cuda::ffn(adjacent, on.x.view(), apart, {}, on.y.mutable_view(), workspace, nullptr);
      }),
      "up: expected right behind gate in memory");
  cuda::Problem problem = layer.problem();
  problem.joined = true;
  problem.gated = false;
  has(message_of([&] { cuda::plan_ffn(cuda::current_device(), problem); }),
      "joined: expected false, since a layer without gate has no up to join");
  problem = layer.problem();
  problem.hot = 49;
  has(message_of([&] { cuda::plan_ffn(cuda::current_device(), problem); }),
      "hot: expected 0 to 48, got 49");
}

// y in the place of x would be read after it was written.
TEST(CudaLibrary, OutputInThePlaceOfTheInputIsRefused) {
  TWELL_NEEDS_GPU();
  const CudaLayer<bf16> layer({4, 16, 48});
  OnDevice<bf16> on(layer);
  const cuda::FfnPlan plan = plan_of(on, layer, {});
  DeviceBuffer<std::byte> memory(plan.workspace_bytes);
  MatrixView y = on.y.mutable_view();
  y.data = const_cast<void*>(on.x.view().data);  // NOLINT: only its address is looked at
  try {
    cuda::ffn(plan, on.x.view(), on.weights(), {}, y, {memory.data(), memory.size()}, nullptr);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("y: overlaps x in memory"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace twell
