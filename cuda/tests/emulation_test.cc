// The emulated GPU itself: it must show the mistakes it is there to show. And kernels must not care
// in which order their threads run.
#include <cuda_runtime.h>

#include <stdexcept>

#include "cuda/tests/support/layer.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file
namespace ptx = cuda::ptx;

float* shared_floats() { return reinterpret_cast<float*>(ptx::dynamic_shared()); }

class EmulationTest : public testing::Test {
 protected:
  ~EmulationTest() override {
    emulation::set_order(emulation::Order::ascending);
    emulation::set_device(0, 90);
  }
};

// Each thread reads its neighbour's word; true if all of them read what was written.
bool neighbours_meet(bool barrier) {
  bool right = true;
  emulation::launch(dim3(1), dim3(64), 64 * 4, [&] {
    const unsigned i = threadIdx.x;
    shared_floats()[i] = static_cast<float>(i);
    if (barrier) __syncthreads();
    right &= shared_floats()[(i + 1) % 64] == static_cast<float>((i + 1) % 64);
  });
  return right;
}

TEST_F(EmulationTest, AMissingBarrierShows) {
  for (auto order :
       {emulation::Order::ascending, emulation::Order::descending, emulation::Order::shuffled}) {
    emulation::set_order(order);
    EXPECT_TRUE(neighbours_meet(true));
    EXPECT_FALSE(neighbours_meet(false));
  }
}

TEST_F(EmulationTest, ABarrierThatNotAllReachIsADeadlock) {
  EXPECT_THROW(emulation::launch(dim3(1), dim3(64), 0,
                                 [] {
                                   if (threadIdx.x < 32) {
                                     __syncthreads();
                                   } else if (threadIdx.x == 32) {
                                     __any_sync(0xffffffffU, 1);
                                   } else {
                                     __syncthreads();
                                   }
                                 }),
               std::runtime_error);
}

TEST_F(EmulationTest, ACopyIsThereOnlyAfterItsWait) {
  alignas(16) static const float source[4] = {1, 2, 3, 4};
  emulation::launch(dim3(1), dim3(32), 32 * 16, [] {
    const unsigned at = threadIdx.x * 16;
    ptx::cp_async_16(at, source, 16);
    ptx::cp_async_commit();
    ptx::cp_async_commit();
    ptx::cp_async_wait<2>();
    EXPECT_TRUE(std::isnan(shared_floats()[at / 4]));
    ptx::cp_async_wait<1>();
    EXPECT_EQ(shared_floats()[at / 4 + 3], 4.0F);
    ptx::cp_async_16(at, source, 0);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    EXPECT_EQ(shared_floats()[at / 4 + 3], 0.0F);
  });
}

TEST_F(EmulationTest, MisalignedAndOutOfBoundsAddressesAreErrors) {
  static const char source[64] = {};
  const auto runs = [](auto body) { emulation::launch(dim3(1), dim3(1), 64, body); };
  EXPECT_THROW(
      runs([] { ptx::load_stream(source + 2 - reinterpret_cast<std::uintptr_t>(source) % 2); }),
      std::runtime_error);
  EXPECT_THROW(runs([] { ptx::store_shared_16(8, {}); }), std::runtime_error);
  EXPECT_THROW(runs([] { ptx::store_shared_16(64, {}); }), std::runtime_error);
}

// The fragments' layout against a plain product.
TEST_F(EmulationTest, MmaMultiplies) {
  static float a[16][16], b[16][8], c[16][8];
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 16; ++k) a[i][k] = static_cast<float>(i * 3 - k);
    for (int j = 0; j < 8; ++j) b[i][j] = static_cast<float>(i - 2 * j);
  }
  emulation::launch(dim3(1), dim3(32), 0, [] {
    const auto g = threadIdx.x / 4;
    const auto t = threadIdx.x % 4;
    const auto pair = [](float low, float high) { return ptx::round_f16x2(low, high); };
    const std::uint32_t words[4] = {
        pair(a[g][2 * t], a[g][2 * t + 1]), pair(a[g + 8][2 * t], a[g + 8][2 * t + 1]),
        pair(a[g][2 * t + 8], a[g][2 * t + 9]), pair(a[g + 8][2 * t + 8], a[g + 8][2 * t + 9])};
    float sum[4] = {100, 100, 100, 100};
    ptx::mma_f16(sum, words, pair(b[2 * t][g], b[2 * t + 1][g]),
                 pair(b[2 * t + 8][g], b[2 * t + 9][g]));
    c[g][2 * t] = sum[0];
    c[g][2 * t + 1] = sum[1];
    c[g + 8][2 * t] = sum[2];
    c[g + 8][2 * t + 1] = sum[3];
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      float expected = 100;
      for (int k = 0; k < 16; ++k) expected += a[i][k] * b[k][j];
      ASSERT_EQ(c[i][j], expected) << i << "," << j;
    }
  }
}

TEST_F(EmulationTest, HalfRoundTripsAndRounds) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const float value = widen_half(static_cast<std::uint16_t>(bits));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(widen_half(round_half(value))));
    } else {
      ASSERT_EQ(round_half(value), bits);
    }
  }
  EXPECT_EQ(round_half(1.0F + 0x1p-11F), 0x3c00);  // a tie goes to even
  EXPECT_EQ(round_half(1.0F + 0x1p-11F + 0x1p-20F), 0x3c01);
  EXPECT_EQ(round_half(65519.0F), 0x7bff);
  EXPECT_EQ(round_half(65520.0F), 0x7c00);
  EXPECT_EQ(round_half(0x1.ffep-15F), 0x03ff + 1U);  // up to the smallest normal
}

// The gather starts before the GEMM has ended only where its code waits for it: code made from PTX
// of compute_80 does not, whichever GPU runs it.
TEST_F(EmulationTest, KernelsOverlapOnlyWhereTheyWait) {
  const CudaLayer<bf16> layer({3, 16, 40});
  for (const int ptx_version : {90, 80, 100}) {
    emulation::set_device(ptx_version, ptx_version);  // a GPU of its own
    const DeviceMatrixOf<bf16> x(layer.x), gate(layer.gate), up(layer.up), down(layer.down);
    DeviceMatrixOf<bf16> y{TestMatrix<bf16>(3, 16)};
    const cuda::FfnPlan plan = cuda::plan_ffn(cuda::current_device(), layer.problem());
    ASSERT_TRUE(plan.gather.overlaps_gemm);
    DeviceBuffer<std::byte> memory(plan.workspace_bytes);
    const int before = emulation::overlapping_launches();
    for (int call = 0; call < 2; ++call) {
      cuda::ffn(plan, x.view(), {gate.view(), up.view(), down.view()}, {}, y.mutable_view(),
                {memory.data(), memory.size()}, nullptr);
    }
    EXPECT_EQ(emulation::overlapping_launches() - before, ptx_version >= 90 ? 2 : 0) << ptx_version;
  }
}

// Racing threads would give another result in another order.
TEST_F(EmulationTest, KernelsGiveTheSameBitsInAnyOrderOfThreads) {
  // Five pipeline steps: the last is computed from the shared memory that the epilogue stages in.
  constexpr std::int64_t kDepth = 296;
  const CudaLayer<bf16> layer({20, kDepth, 300, true, {}, 0.5F});
  const cuda::Device device = cuda::current_device();
  const DeviceMatrixOf<bf16> x(layer.x), gate(layer.gate), up(layer.up), down(layer.down);
  for (cuda::GemmShape shape :
       {cuda::GemmShape::stream32x32, cuda::GemmShape::tile64x64, cuda::GemmShape::tile128x128,
        cuda::GemmShape::library, cuda::GemmShape::screen32x32}) {
    cuda::Problem problem = layer.problem();
    problem.screened = true;
    const cuda::GemmPlan plan = cuda::plan_gemm_relu_twell(shape, device, problem);
    DeviceBuffer<std::byte> gemm_memory(plan.workspace_bytes);
    cuda::GatherPlan gather = cuda::plan_gather(device, layer.problem());
    gather.splits = 3;
    std::vector<std::uint32_t> slots;
    std::vector<bf16> outputs;
    for (unsigned order = 0; order <= 4; ++order) {
      emulation::set_order(order == 0   ? emulation::Order::ascending
                           : order == 1 ? emulation::Order::descending
                                        : emulation::Order::shuffled,
                           order);
      const DeviceScreenOf<bf16> screen(layer, mean_of(layer.x));
      DevicePacked packed({20, 300, plan.tile, 9, DType::bf16});
      cuda::gemm_relu_twell(plan, x.view(), gate.view(), {}, packed.view,
                            {gemm_memory.data(), gemm_memory.size()}, nullptr, screen.view);
      DeviceMatrixOf<bf16> y{TestMatrix<bf16>(20, kDepth)};
      DeviceBuffer<std::byte> memory(gather.workspace_bytes(20));
      cuda::twell_gated_ffn(gather, x.view(), packed.view, up.view(), down.view(), y.mutable_view(),
                            {memory.data(), memory.size()}, nullptr);
      auto words = packed.slots.read();
      const auto overflow = packed.overflow.read();
      words.insert(words.end(), overflow.begin(), overflow.end());
      if (order == 0) {
        slots = words;
        outputs = y.read();
        continue;
      }
      ASSERT_EQ(words, slots) << plan.to_string() << " in order " << order;
      const auto values = y.read();
      ASSERT_EQ(std::memcmp(values.data(), outputs.data(), values.size() * sizeof(bf16)), 0)
          << plan.to_string() << " in order " << order;
    }
  }
}

}  // namespace
}  // namespace twell
