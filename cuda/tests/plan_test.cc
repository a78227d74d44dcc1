// Plans are pure: every GPU's are tested on any machine.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "cuda/kernels/common/raster.h"
#include "cuda/kernels/common/swizzle.cuh"
#include "cuda/ops/buffers.h"
#include "twell/cuda_train.h"
#include "twell/status.h"

namespace twell::cuda {
namespace {

// Of plans that take cuBLASLt; no GPU is asked.
#define TWELL_NEEDS_ITS_PLANS() \
  if (!twell::cuda::library_present()) GTEST_SKIP() << "no libcublasLt.so"

Device gpu(int major, int minor, int sms, std::size_t shared_kib) {
  Device device;
  device.major = major;
  device.minor = minor;
  device.sm_count = sms;
  device.shared_bytes = shared_kib << 10;
  return device;
}
const Device kA100 = gpu(8, 0, 108, 163);
const Device kRtx3090 = gpu(8, 6, 82, 99);
const Device kH100 = gpu(9, 0, 132, 227);

Device with_clocks(Device device, int mhz, int memory_mhz, int bus_bits) {
  device.clock_khz = mhz * 1000;
  device.memory_clock_khz = memory_mhz * 1000;
  device.memory_bus_bits = bus_bits;
  return device;
}

Problem paper(std::int64_t tokens) { return {tokens, 2048, 5632, DType::bf16, true, true}; }

TEST(CudaPlan, ShapeFollowsTheNumberOfRows) {
  TWELL_NEEDS_ITS_PLANS();
  EXPECT_EQ(plan_gemm_relu_twell(kH100, paper(1)).shape, GemmShape::stream8x16);
  EXPECT_EQ(plan_gemm_relu_twell(kH100, paper(8)).shape, GemmShape::stream8x16);
  EXPECT_EQ(plan_gemm_relu_twell(kH100, paper(9)).shape, GemmShape::stream16x32);
  EXPECT_EQ(plan_gemm_relu_twell(kH100, paper(32)).shape, GemmShape::stream32x32);
  for (const Device& device : {kA100, kRtx3090, kH100}) {
    EXPECT_EQ(plan_gemm_relu_twell(device, paper(16384)).shape, GemmShape::library);
  }
}

// A GPU whose memory is slow beside its latencies. On an H100 no screen pays.
const Device kSlowMemory = with_clocks(kH100, 1755, 400, 5120);

// With a screen, where tokens are few and their candidates too.
TEST(CudaPlan, AScreenWhereItIsExpectedToBeFaster) {
  const auto shape = [&](const Device& device, std::int64_t tokens, double candidates) {
    Problem problem = paper(tokens);
    problem.screened = true;
    problem.candidates = candidates;
    return plan_ffn(device, problem).gemm.shape;
  };
  const Device h100 = with_clocks(kH100, 1980, 2619, 5120);
  for (const std::int64_t tokens : {1, 4, 8}) {
    EXPECT_EQ(shape(kSlowMemory, tokens, 0.004), GemmShape::screen32x32) << tokens;
    EXPECT_EQ(shape(h100, tokens, 0.004), GemmShape::stream8x16) << tokens;
  }
  EXPECT_EQ(shape(kSlowMemory, 33, 0.004), plan_ffn(kSlowMemory, paper(33)).gemm.shape);
  EXPECT_EQ(shape(kSlowMemory, 1, 0.9), GemmShape::stream8x16);
  EXPECT_EQ(shape(kSlowMemory, 8, 0.2), GemmShape::stream8x16);
  EXPECT_EQ(shape(kSlowMemory, 16, 0.05), GemmShape::stream16x32);
  EXPECT_EQ(plan_ffn(kSlowMemory, paper(1)).gemm.shape, GemmShape::stream8x16);  // has none
  // Never slower by the estimate.
  for (const std::int64_t tokens : {1, 2, 8, 24, 32, 64}) {
    for (const double candidates : {0.0, 0.01, 0.1, 0.5, 1.0}) {
      Problem problem = paper(tokens);
      const double without = estimate_ffn(kSlowMemory, problem, 0.005, 0.005).gate;
      problem.screened = true;
      problem.candidates = candidates;
      EXPECT_LE(estimate_ffn(kSlowMemory, problem, 0.005, 0.005).gate, without) << tokens;
    }
  }
}

TEST(CudaPlan, CandidatesAreWorthAScreenUpToALimit) {
  double of_fewer = 1;
  for (const std::int64_t tokens : {1, 2, 4, 8}) {
    Problem problem = paper(tokens);
    const GemmShape without = plan_ffn(kSlowMemory, problem).gemm.shape;
    const double limit = candidates_limit(kSlowMemory, problem);
    EXPECT_LT(limit, of_fewer) << "candidates of all tokens wait for one another";
    of_fewer = limit;
    problem.screened = true;
    problem.candidates = limit;
    EXPECT_EQ(plan_ffn(kSlowMemory, problem).gemm.shape, GemmShape::screen32x32) << tokens;
    problem.candidates = limit + 1e-5;
    EXPECT_EQ(plan_ffn(kSlowMemory, problem).gemm.shape, without) << tokens;
  }
  EXPECT_EQ(candidates_limit(kSlowMemory, paper(33)), 0) << "not built";
  EXPECT_EQ(candidates_limit(with_clocks(kH100, 1980, 2619, 5120), paper(1)), 0);
}

TEST(CudaPlan, SharedMemoryFits) {
  for (const Device& device : {kA100, kRtx3090, kH100}) {
    for (std::int64_t tokens : {1, 40, 500, 4096, 1000000}) {
      EXPECT_LE(plan_gemm_relu_twell(device, paper(tokens)).shared_bytes, device.shared_bytes);
    }
    // A screen for so many rows as have room; a plan that is told to takes no more.
    for (const std::int64_t tokens : {1, 8, 16, 24, 32}) {
      Problem problem = paper(tokens);
      problem.screened = true;
      problem.candidates = 0;
      EXPECT_LE(plan_ffn(device, problem).gemm.shared_bytes, device.shared_bytes);
      const auto forced = [&] {
        return plan_gemm_relu_twell(GemmShape::screen32x32, device, problem).shared_bytes;
      };
      if (tokens == 32 && device.shared_bytes == kRtx3090.shared_bytes) {
        EXPECT_THROW(forced(), Error);
      } else {
        EXPECT_LE(forced(), device.shared_bytes) << tokens;
      }
    }
  }
}

TEST(CudaPlan, TileOfTheCaller) {
  TWELL_NEEDS_ITS_PLANS();
  EXPECT_EQ(plan_gemm_relu_twell(kH100, paper(1), 16).tile, 16);
  for (const std::int32_t tile : {48, 256, 5632}) {
    const GemmPlan plan = plan_gemm_relu_twell(kH100, paper(1), tile);
    EXPECT_EQ(plan.shape, GemmShape::library);
    EXPECT_EQ(plan.tile, tile);
  }
  for (const std::int32_t tile : {8, 40, 65552}) {
    EXPECT_THROW(plan_gemm_relu_twell(kH100, paper(1), tile), Error) << tile;
  }
}

TEST(CudaPlan, UnalignedRows) {
  TWELL_NEEDS_ITS_PLANS();
  Problem problem = paper(1);
  problem.aligned = false;
  EXPECT_EQ(plan_gemm_relu_twell(kH100, problem).shape, GemmShape::stream32x32);
  problem.tokens = 5000;
  EXPECT_EQ(plan_gemm_relu_twell(kH100, problem).shape, GemmShape::library);
  problem.aligned = true;
  problem.width = 2047;
  EXPECT_THROW(plan_gemm_relu_twell(kH100, problem), Error);
}

TEST(CudaPlan, F32IsRefused) {
  Problem problem = paper(1);
  problem.dtype = DType::f32;
  EXPECT_THROW(plan_ffn(kH100, problem), Error);
}

TEST(CudaPlan, FewRowsShareBlocks) {
  EXPECT_GT(plan_gather(kH100, paper(1)).splits, 4);
  EXPECT_EQ(plan_gather(kH100, paper(1000)).splits, 1);
  EXPECT_EQ(plan_gather(kH100, paper(1)).threads, 128);
  Problem wide = paper(7);
  wide.width = 20000;
  EXPECT_EQ(plan_gather(kH100, wide).passes, 3);
  EXPECT_EQ(plan_gather(kH100, wide).threads, 256);
}

TEST(CudaPlan, WorkspaceIsBounded) {
  constexpr std::size_t kLimit = std::size_t{256} << 20;
  for (std::int64_t tokens : {1, 129, 5000, 16384, 1000000}) {
    const FfnPlan plan = plan_ffn(kH100, paper(tokens), kLimit);
    // The packed activation's share; counts are an inline word for every 32 … 256 slots.
    EXPECT_LE(plan.workspace_bytes, kLimit * 5 / 4) << plan.to_string();
    EXPECT_GE(plan.row_block, std::min<std::int64_t>(tokens, 128));
    EXPECT_LE(plan.row_block, tokens);
  }
  EXPECT_NE(plan_ffn(kH100, paper(1)).to_string().find("stream 8x16"), std::string::npos);
}

// Two full waves of 128 × 256 outputs on 132 SMs, 17 MB of L2's 50.
// g of hot neurons, which is kept instead, and nothing else.
TEST(CudaPlan, TrainingsForwardPassReservesNoSecondG) {
  TWELL_NEEDS_ITS_PLANS();
  for (const bool gated : {true, false}) {
    Problem problem = paper(4096);
    problem.gated = gated;
    problem.hot = 512;
    const FfnPlan plan = plan_train(kH100, problem).forward;
    Carver with, without;
    EXPECT_EQ(carve_ffn(with, plan).hot_stride, 512);
    EXPECT_EQ(carve_ffn(without, plan, true).hot_stride, 512);
    EXPECT_EQ(with.used() - without.used(), static_cast<std::size_t>(plan.row_block) * 512 * 2);
  }
}

TEST(CudaPlan, BlocksOfALibrarysGemmFillTheGpuAndStayInL2) {
  TWELL_NEEDS_ITS_PLANS();
  Device h100 = kH100;
  h100.l2_bytes = std::size_t{50} << 20;
  EXPECT_EQ(plan_gemm_relu_twell(h100, paper(16384)).block_rows, 1536);
  Problem wide = paper(16384);
  wide.activation = Activation::fat_relu;
  EXPECT_EQ(plan_gemm_relu_twell(h100, wide).block_rows, 768);
  EXPECT_EQ(plan_gemm_relu_twell(h100, paper(1000)).block_rows, 1000);
  Device small = kRtx3090;
  small.l2_bytes = std::size_t{6} << 20;
  // As many tiles as the 82 SMs take at a time, though L2 has room for a third of them.
  EXPECT_EQ(plan_gemm_relu_twell(small, paper(16384)).block_rows, 384);
}

// The gate and u of 2,816 hot neurons: 33 columns of tiles by 8 rows are two full waves. The f32
// sums of 4,096 rows are 34 MB, and two waves but for eight tiles.
TEST(CudaPlan, JoinedUp) {
  TWELL_NEEDS_ITS_PLANS();
  Device h100 = with_clocks(kH100, 1755, 2619, 5120);
  h100.l2_bytes = std::size_t{50} << 20;
  Problem problem = paper(16384);
  problem.hot = 2816;
  const FfnPlan apart = plan_ffn(h100, problem);
  EXPECT_FALSE(apart.joined);
  EXPECT_EQ(apart.row_block, 4096);
  problem.joined = true;
  const FfnPlan joined = plan_ffn(h100, problem);
  EXPECT_TRUE(joined.joined);
  EXPECT_EQ(joined.row_block, 4096);
  EXPECT_EQ(joined.gemm.block_rows, 1024);
  EXPECT_EQ(joined.gemm.block_cols, 5632 + 2816);
  EXPECT_NE(joined.to_string().find("2816 hot neurons, joined"), std::string::npos);
  // All of them: no sums, blocks of the gate and up alone.
  problem.hot = problem.neurons;
  const FfnPlan all = plan_ffn(h100, problem);
  EXPECT_TRUE(all.joined);
  EXPECT_EQ(all.row_block, 16384);
  EXPECT_EQ(all.gemm.block_rows, 768);
  // Blocks of so few rows fill the GPU worse than a GEMM of all of them.
  problem.tokens = 1188;
  EXPECT_FALSE(plan_ffn(h100, problem).joined);
  problem.tokens = 16384;
  problem.hot = 0;
  EXPECT_FALSE(plan_ffn(h100, problem).joined);
  // u would not start at 16 bytes.
  problem.hot = 2816;
  problem.neurons = 5634;
  EXPECT_FALSE(plan_ffn(h100, problem).joined);
}

TEST(CudaPlan, QueueOfTheGather) {
  TWELL_NEEDS_ITS_PLANS();
  constexpr std::size_t kPlenty = std::size_t{4} << 30;
  const FfnPlan few = plan_ffn(kH100, paper(64), kPlenty, GemmShape::library);
  EXPECT_EQ(few.gather.chunk, 8);
  EXPECT_EQ(few.gather.blocks, 4 * 132);
  EXPECT_EQ(plan_ffn(kH100, paper(4096), kPlenty).gather.chunk, 256);
}

TEST(CudaPlan, ListsNameSoManyNeurons) {
  TWELL_NEEDS_ITS_PLANS();
  Problem problem = paper(1000);
  problem.neurons = 70000;
  EXPECT_NE(plan_ffn(kH100, problem).gemm.shape, GemmShape::library);
  // Hot neurons are in no list.
  problem.hot = 8000;
  EXPECT_EQ(plan_ffn(kH100, problem).hot, 8000);
  problem.hot = 800;
  EXPECT_EQ(plan_ffn(kH100, problem).hot, 0);
}

// Rates of neurons that fall like a Zipf law, as those of trained models do.
std::vector<double> zipf(std::int64_t neurons, double nnz) {
  std::vector<double> rates(static_cast<std::size_t>(neurons));
  double sum = 0;
  for (std::size_t n = 0; n < rates.size(); ++n) sum += 1 / static_cast<double>(n + 10);
  for (std::size_t n = 0; n < rates.size(); ++n) {
    rates[n] = std::min(1.0, nnz / sum / static_cast<double>(n + 10));
  }
  return rates;
}

TEST(CudaHot, AsManyAsPay) {
  TWELL_NEEDS_ITS_PLANS();
  Device h100 = with_clocks(kH100, 1755, 2619, 5120);
  h100.l2_bytes = std::size_t{50} << 20;
  const Problem prompt = paper(16384);
  const std::int64_t some = choose_hot(h100, prompt, zipf(5632, 29));
  EXPECT_GT(some, 200);
  EXPECT_LT(some, 1500);
  EXPECT_EQ(some % 64, 0);
  EXPECT_GT(choose_hot(h100, prompt, zipf(5632, 113)), some);
  EXPECT_EQ(choose_hot(h100, prompt, std::vector<double>(5632, 0.5)), 5632);
  EXPECT_EQ(choose_hot(h100, prompt, std::vector<double>(5632, 0.0)), 0);
  EXPECT_EQ(choose_hot(h100, paper(1), zipf(5632, 29)), 0);
  // Dead neurons are never hot, unless all are.
  std::vector<double> half(5632, 0.5);
  std::fill(half.begin() + 2816, half.end(), 0.0);
  EXPECT_NEAR(static_cast<double>(choose_hot(h100, prompt, half)), 2816, 64);
  EXPECT_THROW(choose_hot(h100, prompt, {0.5}), Error);
  EXPECT_THROW(choose_hot(h100, prompt,
                          [] {
                            auto rates = zipf(5632, 29);
                            std::reverse(rates.begin(), rates.end());
                            return rates;
                          }()),
               Error);
}

Problem with_hot(Problem problem, std::int64_t hot) {
  problem.hot = hot;
  return problem;
}

TEST(CudaHot, TrainingIsSparseWhereThatPays) {
  Device h100 = with_clocks(kH100, 1755, 2619, 5120);
  h100.l2_bytes = std::size_t{50} << 20;
  const Problem pass = paper(16384);
  const auto rates = zipf(5632, 29);
  const auto hot = choose_training(h100, pass, rates);
  ASSERT_TRUE(hot.has_value());
  EXPECT_EQ(*hot, choose_hot_in_training(h100, pass, rates));
  // As early in training.
  EXPECT_FALSE(choose_training(h100, pass, std::vector<double>(5632, 0.5)).has_value());
  // What the caller spends besides counts, on both sides of the tenth that has to be saved.
  const Problem chosen = with_hot(pass, *hot);
  const auto share = [&](std::int64_t first) {
    return std::accumulate(rates.begin() + first, rates.end(), 0.0) / 5632;
  };
  const TrainCost cost = estimate_train(h100, chosen, share(0), share(*hot));
  const double room = 0.9 * cost.dense - cost.sparse();
  EXPECT_GT(room, 0);
  EXPECT_TRUE(choose_training(h100, pass, rates, 0.99 * room).has_value());
  EXPECT_FALSE(choose_training(h100, pass, rates, 1.01 * room).has_value());
  // More neurons than a row's list can name: some have to be hot, which few rows do not allow.
  Problem wide = pass;
  wide.neurons = kMostColdNeurons + 64;
  const std::vector<double> rare(static_cast<std::size_t>(wide.neurons), 1e-5);
  EXPECT_EQ(choose_training(h100, wide, rare), 64);
  EXPECT_EQ(plan_train(h100, with_hot(wide, 64)).forward.hot, 64);
  wide.tokens = 32;
  EXPECT_FALSE(choose_training(h100, wide, rare).has_value());
  EXPECT_THROW(plan_train(h100, with_hot(wide, 0)), Error);
}

// The engine's view: what is gained over neurons that all fire equally often.
TEST(CudaCost, RatesOfNeuronsGiveTheTimeOfTheirMixture) {
  Device h100 = with_clocks(kH100, 1755, 2619, 5120);
  h100.l2_bytes = std::size_t{50} << 20;
  Problem prompt = paper(16384);
  for (const double nnz : {29.0, 113.0}) {
    const auto rates = zipf(5632, nnz);
    const auto share_from = [&](std::int64_t first) {
      return std::accumulate(rates.begin() + first, rates.end(), 0.0) / 5632;
    };
    const double density = share_from(0);
    for (const std::int64_t hot : {0, 512}) {
      prompt.hot = hot;
      EXPECT_DOUBLE_EQ(estimate_ffn(h100, prompt, rates).sparse(),
                       estimate_ffn(h100, prompt, density, share_from(hot)).sparse());
    }
    prompt.hot = choose_hot(h100, prompt, rates);
    // At 2 % the layer is hardly faster than a dense one.
    EXPECT_LE(estimate_ffn(h100, prompt, rates).sparse(),
              (nnz < 100 ? 0.95 : 1.0) * estimate_ffn(h100, prompt, density).sparse());
  }
  const std::vector<double> even(5632, 0.25);
  prompt.hot = choose_hot(h100, prompt, even);
  EXPECT_EQ(prompt.hot, 5632);
  EXPECT_DOUBLE_EQ(estimate_ffn(h100, prompt, even).sparse(),
                   estimate_ffn(h100, prompt, 0.25).sparse());
  EXPECT_THROW(estimate_ffn(h100, prompt, std::vector<double>{0.5, 0.1}), Error);
}

// What hot neurons take off the gather is more than they cost.
TEST(CudaCost, HotNeuronsPay) {
  TWELL_NEEDS_ITS_PLANS();
  Device h100 = with_clocks(kH100, 1755, 2619, 5120);
  h100.l2_bytes = std::size_t{50} << 20;
  Problem problem = paper(16384);
  const double before = estimate_ffn(h100, problem, 29.0 / 5632, 29.0 / 5632).sparse();
  problem.hot = 512;
  const double apart = estimate_ffn(h100, problem, 29.0 / 5632, 12.0 / 5632).sparse();
  EXPECT_LT(apart, 0.95 * before);
  // One GEMM less, and u is never in memory; at any number of them.
  problem.joined = true;
  EXPECT_LT(estimate_ffn(h100, problem, 29.0 / 5632, 12.0 / 5632).sparse(), 0.99 * apart);
  problem.hot = problem.neurons;
  const FfnCost all = estimate_ffn(h100, problem, 1, 1);
  EXPECT_LT(all.sparse(), all.dense);
  EXPECT_THROW(estimate_ffn(h100, problem, 0.1, 0.2), Error);
}

// Whatever fires and however its rows end in blocks: at worst the layer is the dense one.
TEST(CudaCost, HotNeuronsAreNeverSlowerThanDense) {
  TWELL_NEEDS_ITS_PLANS();
  Device h100 = with_clocks(kH100, 1755, 2619, 5120);
  h100.l2_bytes = std::size_t{50} << 20;
  for (const double nnz : {29.0, 113.0, 563.0, 4000.0, 5632.0}) {
    const std::vector<double> rates = nnz < 5632 ? zipf(5632, nnz) : std::vector<double>(5632, 1.0);
    const auto density = [&](std::int64_t first) {
      return std::accumulate(rates.begin() + first, rates.end(), 0.0) / 5632;
    };
    for (const bool joined : {false, true}) {
      for (std::int64_t tokens = 1; tokens < 20000; tokens += 1 + tokens / 7) {
        Problem problem = paper(tokens);
        problem.joined = joined;
        problem.hot = choose_hot(h100, problem, rates);
        const std::int64_t hot = plan_ffn(h100, problem).hot;
        const FfnCost cost =
            estimate_ffn(h100, problem, density(0), std::min(density(0), density(hot)));
        ASSERT_LT(cost.sparse(), 1.001 * cost.dense) << nnz << " of " << tokens << " tokens";
      }
    }
  }
}

#ifndef TWELL_CUDA_EMULATED
// No GPU is needed to find the library's functions.
TEST(CudaLibrary, IsLoadedWhereItIsInstalled) {
  bool installed = false;
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"}) {
    installed = installed || dlopen(name, RTLD_LAZY) != nullptr;
  }
  EXPECT_EQ(library_present(), installed && TWELL_CUBLASLT != 0);
}
#endif

TEST(CudaRaster, VisitsEveryTileOnce) {
  for (int rows : {1, 5, 16, 17}) {
    for (int cols : {1, 7}) {
      for (int group : {1, 4, 8}) {
        std::set<std::pair<int, int>> seen;
        for (int i = 0; i < rows * cols; ++i) {
          const Tile tile = raster(i, rows, cols, group);
          ASSERT_TRUE(tile.row < rows && tile.col < cols && tile.row >= 0 && tile.col >= 0);
          seen.insert({tile.row, tile.col});
        }
        ASSERT_EQ(seen.size(), static_cast<std::size_t>(rows * cols)) << rows << cols << group;
      }
    }
  }
}

// The 8 rows of one ldmatrix and the 8 chunks of one row each touch all 32 banks once.
TEST(CudaSwizzle, NoBankConflicts) {
  const auto bank_group = [](int row, int chunk) { return swizzled(row, chunk) / 16 % 8; };
  for (int fixed = 0; fixed < 8; ++fixed) {
    std::set<std::uint32_t> by_row;
    std::set<std::uint32_t> by_chunk;
    for (int i = 0; i < 8; ++i) {
      by_row.insert(bank_group(i, fixed));
      by_chunk.insert(bank_group(fixed, i));
    }
    EXPECT_EQ(by_row.size(), 8U);
    EXPECT_EQ(by_chunk.size(), 8U);
  }
}

// Data sheets: A100 312 TFLOP/s and 1,555 GB/s (40 GB), RTX 3090 71 and 936, H100 989 and 3,352.
TEST(CudaCost, RatesAreThoseOfDataSheets) {
  const auto check = [](const Device& device, double tflops, double gb) {
    const DeviceRates rates = rates_of(device);
    EXPECT_NEAR(rates.tensor_flops / 1e12, tflops, 0.02 * tflops);
    EXPECT_NEAR(rates.memory_bytes / 1e9, gb, 0.01 * gb);
    EXPECT_GT(rates.l2_bytes, 2 * rates.memory_bytes);
  };
  check(with_clocks(kA100, 1410, 1215, 5120), 312, 1555);
  check(with_clocks(kRtx3090, 1695, 9751, 384), 71, 936);
  check(with_clocks(kH100, 1830, 2619, 5120), 989, 3352);
  const DeviceRates unknown = rates_of(kA100);  // clocks that the driver does not tell
  EXPECT_GT(unknown.tensor_flops, 1e12);
  EXPECT_GT(unknown.memory_bytes, 1e11);
}

TEST(CudaCost, SparseWinsWhereFewNeuronsFireAndIsDenseWhereMostDo) {
  TWELL_NEEDS_ITS_PLANS();
  const Device devices[] = {with_clocks(kA100, 1410, 1215, 5120),
                            with_clocks(kRtx3090, 1695, 9751, 384),
                            with_clocks(kH100, 1830, 2619, 5120)};
  for (const Device& device : devices) {
    for (const bool gated : {true, false}) {
      for (const std::int64_t tokens : {1, 8, 64, 512, 4096, 100000}) {
        Problem problem = paper(tokens);
        problem.gated = gated;
        const auto ratio = [&](double density) {
          const FfnCost cost = estimate_ffn(device, problem, density);
          EXPECT_GT(cost.dense, 0);
          EXPECT_GT(cost.sparse(), 0);
          return cost.sparse() / cost.dense;
        };
        // The share the paper's models fire. For many tokens it takes neurons that differ.
        if (tokens <= 64) {
          EXPECT_LT(ratio(29.0 / 5632), 1.0) << tokens;
        } else if (gated) {
          EXPECT_LE(ratio(29.0 / 5632), 1.0) << tokens;
        }
        // Where most neurons fire the layer is the dense one; one without a gate is activated
        // while it is in L2.
        const bool dense = tokens >= 64 && gated;
        EXPECT_NEAR(ratio(1.0), dense ? 1.0 : 0.95, dense ? 1e-9 : 0.25) << tokens;
        // Each further neuron costs something or nothing, so there is one crossover.
        double before = ratio(0);
        for (int percent = 1; percent <= 100; ++percent) {
          const double now = ratio(percent / 100.0);
          EXPECT_GE(now, before);
          before = now;
        }
      }
      // One token at full density reads the same weights on both paths.
      Problem one = paper(1);
      one.gated = gated;
      const FfnCost cost = estimate_ffn(device, one, 1.0);
      EXPECT_LT(cost.sparse(), 1.2 * cost.dense);
    }
  }
  EXPECT_THROW(estimate_ffn(kA100, paper(1), 1.5), Error);
  EXPECT_THROW(estimate_ffn(kA100, paper(1), std::nan("")), Error);
}

}  // namespace
}  // namespace twell::cuda
