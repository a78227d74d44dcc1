// Sectors of device memory that a warp touches at a time: the count itself, and limits for the hot
// loops of the kernels on aligned shapes. Only the wrappers of ptx_twins.h are seen: not the plain
// C++ loads of counts and slots, the plain stores of y and of packed activations, and none of the
// instances for unaligned rows.
#include <cuda_runtime.h>

#include "cuda/tests/support/ffn.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file
namespace ptx = cuda::ptx;
using emulation::Accesses;
using emulation::Order;

class EmulationAccessTest : public testing::Test {
 protected:
  ~EmulationAccessTest() override {
    emulation::count_accesses(false);
    emulation::set_order(Order::ascending);
    emulation::set_blocks(emulation::Blocks::one_by_one);
  }

  DeviceBuffer<uint4> memory_{4096};

  // By the threads of two warps.
  Accesses count(const char* name, const std::function<void(uint4*, unsigned)>& access) {
    emulation::count_accesses(true);
    emulation::launch(dim3(1), dim3(64), 64 * 16, [&] { access(memory_.data(), threadIdx.x); });
    EXPECT_EQ(emulation::accesses().size(), 1U);
    return emulation::accesses().at(name);
  }
};

#define EXPECT_ACCESSES(got, warps_, sectors_, needed_) \
  do {                                                  \
    const Accesses counted = got;                       \
    EXPECT_EQ(counted.warps, warps_);                   \
    EXPECT_EQ(counted.sectors, sectors_);               \
    EXPECT_EQ(counted.needed, needed_);                 \
  } while (false)

TEST_F(EmulationAccessTest, SectorsAreCounted) {
  EXPECT_ACCESSES(count("load_stream", [](uint4* m, unsigned i) { ptx::load_stream(m + i); }), 2,
                  32, 32);
  // Every other vector; every lane in a sector of its own.
  EXPECT_ACCESSES(count("store_16", [](uint4* m, unsigned i) { ptx::store_16(m + 2 * i, {}); }), 2,
                  64, 32);
  // Off by half a sector.
  EXPECT_ACCESSES(
      count("load_shared_row", [](uint4* m, unsigned i) { ptx::load_shared_row(m + i + 1); }), 2,
      34, 32);
  // All lanes of a warp the same word.
  EXPECT_ACCESSES(count("load_other_block",
                        [](uint4* m, unsigned i) {
                          ptx::load_other_block(reinterpret_cast<float*>(m) + i / 32);
                        }),
                  2, 2, 2);
  EXPECT_ACCESSES(count("load_other_block_f4",
                        [](uint4* m, unsigned i) {
                          ptx::load_other_block_f4(reinterpret_cast<float*>(m + 8 * i));
                        }),
                  2, 64, 32);
  EXPECT_ACCESSES(
      count("store_f4",
            [](uint4* m, unsigned i) { ptx::store_f4(reinterpret_cast<float*>(m + i), {}); }),
      2, 32, 32);
  // Of a copy of zeros nothing is read; the others' bytes are 12 sectors.
  EXPECT_ACCESSES(
      count("cp_async_16",
            [](uint4* m, unsigned i) { ptx::cp_async_16(i * 16, m + i, i % 32 < 24 ? 16 : 0); }),
      2, 24, 24);
}

// Lanes meet by place and trip, whatever the order of threads.
TEST_F(EmulationAccessTest, TripsAndPlacesAreKeptApart) {
  for (const Order order : {Order::ascending, Order::descending, Order::shuffled}) {
    emulation::set_order(order);
    const Accesses got = count("load_stream", [](uint4* m, unsigned i) {
      for (unsigned trip = 0; trip < 3; ++trip) ptx::load_stream(m + 64 * trip + i);
      if (i % 2 == 0) ptx::load_stream(m + 256 + i);  // half of the lanes
      ptx::load_stream(m + 512 + i);
    });
    EXPECT_ACCESSES(got, 10, 3 * 32 + 32 + 32, 3 * 32 + 16 + 32);
    EXPECT_EQ(got.worst, 2.0);
  }
}

// The documented limit: a lane that leaves out a trip is matched with the others' next one, until
// the warp's next collective.
TEST_F(EmulationAccessTest, ACollectiveMatchesLanesAnew) {
  for (const bool collective : {false, true}) {
    const Accesses got = count("load_stream", [&](uint4* m, unsigned i) {
      for (unsigned trip = 0; trip < 4; ++trip) {
        if (trip > 0 || i % 2 == 0) ptx::load_stream(m + 64 * trip + i);
        if (collective) __any_sync(0xffffffffU, 1);
      }
    });
    EXPECT_EQ(got.warps, 8);
    // Matched wrongly, even and odd lanes touch different sectors of two rows; the last is half.
    EXPECT_EQ(got.sectors, collective ? 4 * 32 : 3 * 64 + 32);
  }
}

TEST_F(EmulationAccessTest, NothingIsCountedUnlessAskedFor) {
  count("load_stream", [](uint4* m, unsigned i) { ptx::load_stream(m + i); });
  emulation::count_accesses(false);
  emulation::launch(dim3(1), dim3(32), 0, [&] { ptx::load_stream(memory_.data()); });
  EXPECT_EQ(emulation::accesses().at("load_stream").warps, 2);
  emulation::count_accesses(true);
  EXPECT_TRUE(emulation::accesses().empty());
}

// Aligned to sectors, whole warps: nothing is read that is not needed.
TEST_F(EmulationAccessTest, TheGateGemmReadsWholeSectors) {
  const CudaLayer<bf16> layer({128, 256, 256});
  const DeviceMatrixOf<bf16> x(layer.x), gate(layer.gate);
  for (cuda::GemmShape shape : {cuda::GemmShape::tile64x64, cuda::GemmShape::tile128x128}) {
    const cuda::GemmPlan plan =
        cuda::plan_gemm_relu_twell(shape, cuda::current_device(), layer.problem());
    DevicePacked packed({128, 256, plan.tile, plan.tile, DType::bf16});
    emulation::count_accesses(true);
    cuda::gemm_relu_twell(plan, x.view(), gate.view(), {}, packed.view, {}, nullptr);
    const Accesses& got = emulation::accesses().at("cp_async_16");
    EXPECT_EQ(got.worst, 1.0) << plan.to_string();
    // Each block reads its rows of x and W once.
    const std::int64_t blocks = 128 / plan.block_rows * (256 / plan.block_cols);
    EXPECT_EQ(got.sectors * 32, blocks * (plan.block_rows + plan.block_cols) * 256 * 2)
        << plan.to_string();
  }
}

TEST_F(EmulationAccessTest, TheStreamedGemmReadsWholeSectors) {
  for (const std::int64_t tokens : {8, 16, 32}) {
    const CudaLayer<bf16> layer({tokens, 1024, 64});
    const DeviceMatrixOf<bf16> x(layer.x), gate(layer.gate);
    const cuda::GemmPlan plan =
        cuda::plan_gemm_relu_twell(cuda::current_device(), layer.problem(), 32);
    DevicePacked packed({tokens, 64, 32, 32, DType::bf16});
    emulation::count_accesses(true);
    cuda::gemm_relu_twell(plan, x.view(), gate.view(), {}, packed.view, {}, nullptr);
    const Accesses& got = emulation::accesses().at("load_stream");
    EXPECT_EQ(got.worst, 1.0) << plan.to_string();
    // W once, x once for each of two blocks.
    EXPECT_EQ(got.sectors * 32, (64 + 2 * tokens) * 1024 * 2) << plan.to_string();
  }
}

// A screen's levels once; x and the axis by every block.
TEST_F(EmulationAccessTest, TheScreenIsReadOnceInWholeSectors) {
  for (const std::int64_t tokens : {8, 16}) {
    CudaLayer<bf16> layer({tokens, 1024, 64});
    for (std::int64_t k = 0; k < 1024; ++k) {  // far below zero: the screen makes sure of all
      for (std::int64_t r = 0; r < tokens; ++r) layer.x.set(r, k, std::abs(layer.x.value(r, k)));
      for (std::int64_t n = 0; n < 64; ++n) {
        layer.gate.set(n, k, -std::abs(layer.gate.value(n, k)));
      }
    }
    const DeviceMatrixOf<bf16> x(layer.x), gate(layer.gate);
    const DeviceScreenOf<bf16> screen(layer, mean_of(layer.x));
    cuda::Problem problem = layer.problem();
    problem.screened = true;
    const cuda::GemmPlan plan =
        cuda::plan_gemm_relu_twell(cuda::GemmShape::screen32x32, cuda::current_device(), problem);
    DevicePacked packed({tokens, 64, 32, 32, DType::bf16});
    emulation::count_accesses(true);
    cuda::gemm_relu_twell(plan, x.view(), gate.view(), {}, packed.view, {}, nullptr, screen.view);
    for (const auto& [name, got] : emulation::accesses()) {
      EXPECT_EQ(got.worst, 1.0) << name << ", " << tokens;
    }
    EXPECT_EQ(emulation::accesses().at("cp_async_16").sectors * 32, 64 * 1024);
    // Nothing of W.
    EXPECT_EQ(emulation::accesses().at("load_shared_row").sectors * 32,
              2 * (tokens + tokens / 8) * 1024 * 2);
  }
}

TEST_F(EmulationAccessTest, TheGatherReadsWholeSectors) {
  constexpr std::int64_t kHidden = 100;
  const CudaLayer<bf16> layer({2, 2048, kHidden});
  const DeviceMatrixOf<bf16> x(layer.x), up(layer.up), down(layer.down);
  DevicePacked packed({2, kHidden, 32, 32, DType::bf16});
  pack_to_device(activation_matrix<bf16>(Pattern::random50, 2, kHidden, 3), packed);
  cuda::GatherPlan plan = cuda::plan_gather(cuda::current_device(), layer.problem());
  for (const int splits : {1, 3}) {
    plan.splits = splits;
    DeviceMatrixOf<bf16> y{TestMatrix<bf16>(2, 2048)};
    DeviceBuffer<std::byte> memory(plan.workspace_bytes(2));
    emulation::count_accesses(true);
    cuda::twell_gated_ffn(plan, x.view(), packed.view, up.view(), down.view(), y.mutable_view(),
                          {memory.data(), memory.size()}, nullptr);
    const auto& got = emulation::accesses();
    EXPECT_EQ(got.at("load_shared_row").worst, 1.0);
    EXPECT_EQ(got.at("store_16").worst, 1.0);
    if (splits > 1) {
      EXPECT_EQ(got.at("store_f4").worst, 1.0);
      EXPECT_EQ(got.at("load_other_block_f4").worst, 1.0);
    }
  }
}

TEST_F(EmulationAccessTest, TheLayerAroundALibrarysGemmReadsWholeSectors) {
  const CudaLayer<bf16> layer({66, 2048, 128, true, {}, 1.0F});
  FfnOptions options;
  options.shape = cuda::GemmShape::library;
  options.chunk = 8;
  options.hot = 32;
  for (const bool joined : {false, true}) {
    OnDevice<bf16> on(layer, joined);
    const cuda::FfnPlan plan = plan_of(on, layer, options);
    DeviceBuffer<std::byte> memory(plan.workspace_bytes);
    emulation::count_accesses(true);
    cuda::ffn(plan, on.x.view(), on.weights(), {}, on.y.mutable_view(),
              {memory.data(), memory.size()}, nullptr);
    for (const auto& [name, got] : emulation::accesses()) EXPECT_EQ(got.worst, 1.0) << name;
    // The dense gate once by pack_gate; of the hot neurons once u with it, or g by hot_product.
    EXPECT_EQ(emulation::accesses().at("load_stream").sectors * 32, 66 * (128 + 32) * 2);
    // g of the hot neurons and h, or h at once.
    EXPECT_GE(emulation::accesses().at("store_16").sectors * 32, 66 * 32 * 2 * (joined ? 1 : 2));
  }
}

}  // namespace
}  // namespace twell
