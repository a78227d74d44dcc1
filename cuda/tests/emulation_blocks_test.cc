// Blocks that run at the same time: the emulation must show what goes wrong without fences, and the
// kernels must not care how their blocks take turns.
#include <cuda_runtime.h>

#include <cstring>
#include <stdexcept>

#include "cuda/tests/support/ffn.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file
namespace ptx = cuda::ptx;
using emulation::Blocks;
using emulation::Order;

class EmulationBlocksTest : public testing::Test {
 protected:
  ~EmulationBlocksTest() override {
    emulation::set_blocks(Blocks::one_by_one);
    emulation::set_order(Order::ascending);
  }
};

constexpr unsigned kSeeds = 12;
constexpr unsigned kThreads = 64;

// "The last block adds the partial sums", as a kernel may have it right or wrong.
struct LastBlock {
  bool fences = true;        // of all threads, after their stores
  bool early_fence = false;  // of the thread that takes the ticket alone, before the barrier
  bool barrier = true;       // before the ticket
  bool one_fence = false;    // of the thread that takes the ticket, after the barrier
  bool reader_fence = true;  // of all threads, after the ticket
  bool other_block = false;  // reads by load_other_block
  unsigned grid = 5;
};

// Whether the last block found what all blocks stored.
bool adds_up(const LastBlock& kernel) {
  DeviceBuffer<float> partial(std::size_t{kernel.grid} * kThreads);
  DeviceBuffer<float> sum(kThreads);
  DeviceBuffer<unsigned> ticket(std::vector<unsigned>{0});
  emulation::launch(dim3(kernel.grid), dim3(kThreads), 4, [&] {
    auto& taken = *reinterpret_cast<unsigned*>(ptx::dynamic_shared());
    const unsigned i = threadIdx.x;
    partial.data()[blockIdx.x * kThreads + i] = static_cast<float>(blockIdx.x + i);
    if (kernel.fences || (kernel.early_fence && i == 0)) __threadfence();
    if (kernel.barrier) __syncthreads();
    if (i == 0) {
      if (kernel.one_fence) __threadfence();
      taken = atomicAdd(ticket.data(), 1U);
    }
    __syncthreads();
    if (taken != kernel.grid - 1) return;
    if (kernel.reader_fence) __threadfence();
    float total = 0;
    for (unsigned b = 0; b < kernel.grid; ++b) {
      const float* from = partial.data() + b * kThreads + i;
      total += kernel.other_block ? ptx::load_other_block(from) : *from;
    }
    sum.data()[i] = total;
  });
  const float blocks = static_cast<float>(kernel.grid);
  const auto sums = sum.read();
  for (unsigned i = 0; i < kThreads; ++i) {
    if (sums[i] != blocks * (blocks - 1) / 2 + blocks * static_cast<float>(i)) return false;
  }
  return true;
}

// Of kSeeds.
unsigned times_right(Blocks blocks, const LastBlock& kernel, Order order = Order::ascending) {
  unsigned right = 0;
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    emulation::set_blocks(blocks, seed);
    emulation::set_order(order, seed);
    right += adds_up(kernel) ? 1 : 0;
  }
  return right;
}

const LastBlock kOneFence = {.fences = false, .one_fence = true};
const LastBlock kNoFence = {.fences = false};
const LastBlock kNoReaderFence = {.reader_fence = false};
const LastBlock kNoBarrier = {.barrier = false};
const LastBlock kNoBarrierOneFence = {.fences = false, .barrier = false, .one_fence = true};

TEST_F(EmulationBlocksTest, CorrectPatternsAreRight) {
  for (const unsigned grid : {1U, 5U, 12U}) {
    LastBlock all_fence, one_fence = kOneFence, past_l1 = kNoReaderFence;
    past_l1.other_block = true;  // L2 has what was published
    for (LastBlock* kernel : {&all_fence, &one_fence, &past_l1}) {
      kernel->grid = grid;
      for (const Order order : {Order::ascending, Order::descending, Order::shuffled}) {
        EXPECT_EQ(times_right(Blocks::concurrent, *kernel, order), kSeeds) << grid;
      }
      EXPECT_EQ(times_right(Blocks::interleaved, *kernel), kSeeds) << grid;
    }
  }
}

TEST_F(EmulationBlocksTest, MissingFencesShow) {
  EXPECT_EQ(times_right(Blocks::concurrent, kNoFence), 0U);
  EXPECT_EQ(times_right(Blocks::concurrent, kNoReaderFence), 0U);
  // It publishes what that thread stored.
  EXPECT_EQ(times_right(Blocks::concurrent, {.fences = false, .early_fence = true}), 0U);
  // What a fence decides does not show where all stores are visible at once, or blocks are alone.
  EXPECT_EQ(times_right(Blocks::interleaved, kNoFence), kSeeds);
  EXPECT_EQ(times_right(Blocks::one_by_one, kNoFence), kSeeds);
}

TEST_F(EmulationBlocksTest, AMissingBarrierBeforeTheTicketShows) {
  for (const LastBlock& kernel : {kNoBarrier, kNoBarrierOneFence}) {
    EXPECT_LE(times_right(Blocks::concurrent, kernel), kSeeds / 2);
    EXPECT_LT(times_right(Blocks::interleaved, kernel), kSeeds);
  }
  EXPECT_EQ(times_right(Blocks::one_by_one, kNoBarrier), kSeeds);
}

// A fence publishes its thread's stores and those that a barrier made known to the thread.
TEST_F(EmulationBlocksTest, FencesPublishWhatTheirThreadKnows) {
  enum Kind { own, other_warp, same_warp, after_syncwarp, after_syncthreads };
  for (const Kind kind : {own, other_warp, same_warp, after_syncwarp, after_syncthreads}) {
    emulation::set_blocks(Blocks::concurrent, 3);
    DeviceBuffer<float> data(std::vector<float>(1, 1.0F));
    DeviceBuffer<float> seen(1);
    DeviceBuffer<unsigned> flag(std::vector<unsigned>{0});
    emulation::launch(dim3(2), dim3(64), 0, [&] {
      if (blockIdx.x == 0) {
        if (threadIdx.x == (kind == own ? 32U : kind == other_warp ? 0U : 33U)) {
          data.data()[0] = 2.0F;
        }
        // Lets all threads come past the store, and makes nothing known.
        for (int i = 0; i < 3; ++i) __any_sync(0xffffffffU, 1);
        while (kind == other_warp && threadIdx.x == 32 && atomicAdd(flag.data(), 0U) == 0) {
        }
        if (kind == other_warp && threadIdx.x == 0) atomicAdd(flag.data(), 1U);
        if (kind == after_syncwarp) __syncwarp();
        if (kind == after_syncthreads) __syncthreads();
        if (threadIdx.x == 32) {
          __threadfence();
          atomicAdd(flag.data(), 2U);
        }
      } else if (threadIdx.x == 0) {
        while (atomicAdd(flag.data(), 0U) < 2) {
        }
        __threadfence();
        seen.data()[0] = data.data()[0];
      }
    });
    const bool known = kind == own || kind == after_syncwarp || kind == after_syncthreads;
    EXPECT_EQ(seen.read()[0], known ? 2.0F : 1.0F) << kind;
    EXPECT_EQ(data.read()[0], 2.0F);  // the kernel's end publishes all
  }
}

// Whole pages, their borders, and bytes of one word.
TEST_F(EmulationBlocksTest, BlocksKeepEachOthersBytes) {
  constexpr unsigned kBytes = 3 * 4096 + 77;
  constexpr unsigned kGrid = 11;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    emulation::set_blocks(Blocks::concurrent, seed, 3);
    DeviceBuffer<std::uint8_t> bytes(kBytes);
    emulation::launch(dim3(kGrid), dim3(32), 0, [&] {
      for (unsigned i = blockIdx.x + threadIdx.x * kGrid; i < kBytes; i += 32 * kGrid) {
        bytes.data()[i] = static_cast<std::uint8_t>(i % 251);
        if (i % 1000 == 0) __threadfence();
        EXPECT_EQ(bytes.data()[i], i % 251);
      }
    });
    const auto got = bytes.read();
    for (unsigned i = 0; i < kBytes; ++i) ASSERT_EQ(got[i], i % 251) << i;
  }
}

TEST_F(EmulationBlocksTest, AtomicsAreAtomic) {
  constexpr unsigned kGrid = 20;
  for (const Blocks blocks : {Blocks::interleaved, Blocks::concurrent}) {
    emulation::set_blocks(blocks, 5);
    DeviceBuffer<unsigned> sum(std::vector<unsigned>{0});
    DeviceBuffer<unsigned> bits(std::vector<unsigned>{0});
    DeviceBuffer<int> most(std::vector<int>{-5});
    DeviceBuffer<unsigned> own(kGrid);
    emulation::launch(dim3(kGrid), dim3(40), 0, [&] {
      atomicAdd(sum.data(), threadIdx.x);
      atomicOr(bits.data(), 1U << blockIdx.x);
      atomicMax(most.data(), static_cast<int>(blockIdx.x * threadIdx.x));
      if (threadIdx.x != 0) return;
      own.data()[blockIdx.x] = 5;  // a thread's atomics come after its own stores
      EXPECT_EQ(atomicAdd(own.data() + blockIdx.x, 2U), 5U);
      EXPECT_EQ(own.data()[blockIdx.x], 7U);
    });
    EXPECT_EQ(sum.read()[0], kGrid * 780);
    EXPECT_EQ(bits.read()[0], (1U << kGrid) - 1);
    EXPECT_EQ(most.read()[0], 19 * 39);
    EXPECT_EQ(own.read(), std::vector<unsigned>(kGrid, 7));
  }
}

// A chain of blocks, each of which waits for the one before. True if every sum is right.
bool chain_adds_up(unsigned seed, bool fences, bool by_load) {
  constexpr unsigned kGrid = 6;
  emulation::set_blocks(Blocks::concurrent, seed, kGrid);
  DeviceBuffer<unsigned> sums(kGrid);
  DeviceBuffer<float> ready(std::vector<float>(kGrid, 0.0F));
  DeviceBuffer<unsigned> flags(std::vector<unsigned>(kGrid, 0));
  emulation::launch(dim3(kGrid), dim3(32), 0, [&] {
    if (threadIdx.x != 0) return;
    const unsigned b = blockIdx.x;
    if (b > 0) {
      const auto waits = [&] {
        return by_load ? ptx::load_other_block(ready.data() + b - 1) == 0.0F
                       : atomicAdd(flags.data() + b - 1, 0U) == 0;
      };
      while (waits()) {
      }
      if (fences) __threadfence();
    }
    sums.data()[b] = (b > 0 ? sums.data()[b - 1] : 0) + b;
    if (fences) __threadfence();
    ready.data()[b] = 1.0F;
    if (by_load) __threadfence();
    atomicAdd(flags.data() + b, 1U);
  });
  return sums.read() == std::vector<unsigned>{0, 1, 3, 6, 10, 15};
}

TEST_F(EmulationBlocksTest, BlocksMayWaitForFlags) {
  for (unsigned seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_TRUE(chain_adds_up(seed, true, false));
    EXPECT_TRUE(chain_adds_up(seed, true, true));
    EXPECT_FALSE(chain_adds_up(seed, false, false));
  }
}

TEST_F(EmulationBlocksTest, WaitingForEverIsAnError) {
  for (const Blocks blocks : {Blocks::concurrent, Blocks::one_by_one}) {
    emulation::set_blocks(blocks);
    DeviceBuffer<unsigned> flag(std::vector<unsigned>{0});
    const auto wait = [&] {
      if (blockIdx.x == 0) atomicAdd(flag.data(), 1U);
      while (blockIdx.x == 1 && atomicAdd(flag.data(), 0U) < 2) {
      }
    };
    EXPECT_THROW(emulation::launch(dim3(2), dim3(1), 0, wait), std::runtime_error);
  }
  // And no trace of it is left.
  EXPECT_TRUE(adds_up({}));
}

// The gather's last block of a row, with real fences.
class GatherBlocks {
 public:
  explicit GatherBlocks(std::int64_t depth)
      : layer_({2, depth, 70}),
        packed_({2, 70, 16, 5, DType::bf16}),
        x_(layer_.x),
        up_(layer_.up),
        down_(layer_.down) {
    pack_to_device(activation_matrix<bf16>(Pattern::random50, 2, 70, 3), packed_);
  }

  std::vector<bf16> run(int splits) {
    cuda::GatherPlan plan = cuda::plan_gather(cuda::current_device(), layer_.problem());
    plan.splits = splits;
    DeviceMatrixOf<bf16> y{TestMatrix<bf16>(2, layer_.shape.width)};
    DeviceBuffer<std::byte> memory(plan.workspace_bytes(2));
    cuda::twell_gated_ffn(plan, x_.view(), packed_.view, up_.view(), down_.view(), y.mutable_view(),
                          {memory.data(), memory.size()}, nullptr);
    return y.read();
  }

 private:
  CudaLayer<bf16> layer_;
  DevicePacked packed_;
  DeviceMatrixOf<bf16> x_, up_, down_;
};

bool same_bits(const std::vector<bf16>& a, const std::vector<bf16>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(bf16)) == 0;
}

TEST_F(EmulationBlocksTest, TheGatherAddsUpInAnyOrderOfBlocks) {
  // One column pass, and two, with 512 threads.
  const auto check = [](std::int64_t depth, const std::vector<int>& all_splits, unsigned seeds) {
    GatherBlocks gather(depth);
    for (const int splits : all_splits) {
      emulation::set_blocks(Blocks::one_by_one);
      const auto expected = gather.run(splits);
      for (unsigned seed = 1; seed <= seeds; ++seed) {
        emulation::set_blocks(Blocks::concurrent, seed);
        // In each of them other warps lead after the last barrier.
        emulation::set_order(seed % 2 == 0 ? Order::ascending : Order::descending);
        ASSERT_TRUE(same_bits(gather.run(splits), expected))
            << depth << " columns, " << splits << " splits, seed " << seed;
      }
    }
  };
  check(1000, {2, 3, 4, 5, 6, 7, 8}, 4);
  check(8248, {2, 5, 8}, 1);
}

// The whole layer: what one kernel stores the next one reads, and blocks share pages.
TEST_F(EmulationBlocksTest, TheLayerGivesTheSameBitsInAnyOrderOfBlocks) {
  using Shape = cuda::GemmShape;
  // Streamed and two blocks a row, tiled; by a screen.
  for (const auto& [tokens, shape] :
       {std::pair{3, Shape::stream8x16}, {70, Shape::tile64x64}, {3, Shape::screen32x32}}) {
    const std::int64_t hidden = tokens == 3 ? 600 : 300;
    const CudaLayer<bf16> layer({tokens, 72, hidden});
    const DeviceMatrixOf<bf16> x(layer.x), gate(layer.gate), up(layer.up), down(layer.down);
    const DeviceScreenOf<bf16> screen(layer);
    cuda::Problem problem = layer.problem();
    problem.screened = true;
    const cuda::FfnPlan plan =
        cuda::plan_ffn(cuda::current_device(), problem, std::size_t{1} << 30, shape);
    ASSERT_EQ(plan.gather.splits > 1, tokens == 3);
    std::vector<bf16> expected;
    for (unsigned seed = 0; seed <= 2; ++seed) {
      emulation::set_blocks(seed == 0 ? Blocks::one_by_one : Blocks::concurrent, seed);
      DeviceMatrixOf<bf16> y{TestMatrix<bf16>(tokens, 72)};
      DeviceBuffer<std::byte> memory(plan.workspace_bytes);
      DeviceBuffer<std::int64_t> neurons(
          std::vector<std::int64_t>(static_cast<std::size_t>(hidden), 0));
      cuda::ffn(plan, x.view(), {gate.view(), up.view(), down.view(), screen.view}, {},
                y.mutable_view(), {memory.data(), memory.size()}, nullptr,
                {nullptr, neurons.data()});
      if (seed == 0) expected = y.read();
      ASSERT_TRUE(same_bits(y.read(), expected)) << plan.to_string() << ", seed " << seed;
    }
  }
}

// Blocks take rows and chunks off the queue in any order, add up others' sums, or run out of room
// for them: the bits are those of one block after the other.
TEST_F(EmulationBlocksTest, TheQueueGivesTheSameBitsInAnyOrderOfBlocks) {
  CudaLayer<bf16> layer({66, 40, 300, true, {}, 2.0F});
  for (const std::int64_t row : {3, 65}) layer.x.set(row, 0, -20.0F);  // fire everything
  OnDevice<bf16> on(layer);
  for (const int partials : {2048, 45, 0}) {
    FfnOptions options;
    options.shape = cuda::GemmShape::library;
    options.chunk = 8;
    options.partials = partials;
    options.hot = partials == 45 ? 16 : 0;
    cuda::FfnPlan plan = plan_of(on, layer, options);
    plan.gather.blocks = 12;
    DeviceBuffer<std::byte> memory(cuda::workspace_bytes(plan));
    plan.workspace_bytes = memory.size();
    std::vector<bf16> expected;
    for (unsigned seed = 0; seed <= 4; ++seed) {
      emulation::set_blocks(seed == 0 ? Blocks::one_by_one : Blocks::concurrent, seed);
      emulation::set_order(seed % 2 == 0 ? Order::ascending : Order::descending);
      on.y.poison();
      cuda::ffn(plan, on.x.view(), on.weights(), {}, on.y.mutable_view(),
                {memory.data(), memory.size()}, nullptr);
      if (seed == 0) expected = on.y.read();
      ASSERT_TRUE(same_bits(on.y.read(), expected)) << partials << " partials, seed " << seed;
    }
  }
}

}  // namespace
}  // namespace twell
