// What the emulation has of the CUDA language, and the twins of instructions, each against its
// definition.
#include <cuda_runtime.h>

#include <array>
#include <limits>
#include <stdexcept>

#include "cuda/tests/support/layer.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file
namespace ptx = cuda::ptx;

constexpr unsigned kAll = 0xffffffffU;

void in_warp(const std::function<void(unsigned lane)>& body, std::size_t shared = 0) {
  emulation::launch(dim3(1), dim3(32), shared, [&] { body(threadIdx.x); });
}

TEST(EmulationLanguage, Ballot) {
  in_warp([](unsigned lane) {
    EXPECT_EQ(__ballot_sync(kAll, lane % 3 == 0 ? 8 : 0), 0x49249249U);
    EXPECT_EQ(__ballot_sync(kAll, 0), 0U);
    EXPECT_EQ(__any_sync(kAll, lane == 31 ? 4 : 0), 1);
    EXPECT_EQ(__any_sync(kAll, 0), 0);
  });
  // Lanes of one warp may not meet in different collectives.
  EXPECT_THROW(in_warp([](unsigned lane) {
                 if (lane == 0) {
                   __any_sync(kAll, 1);
                 } else {
                   __ballot_sync(kAll, 1);
                 }
               }),
               std::runtime_error);
  EXPECT_THROW(in_warp([](unsigned) { __ballot_sync(1U, 1); }), std::runtime_error);
}

TEST(EmulationLanguage, Shuffles) {
  in_warp([](unsigned lane) {
    const int l = static_cast<int>(lane);
    EXPECT_EQ(__shfl_xor_sync(kAll, -l, 5), -(l ^ 5));
    EXPECT_EQ(__shfl_xor_sync(kAll, 0x80000000U + lane, 16), 0x80000000U + (lane ^ 16U));
    EXPECT_EQ(__shfl_xor_sync(kAll, static_cast<float>(l), 1), static_cast<float>(l ^ 1));
    EXPECT_EQ(__shfl_down_sync(kAll, -l, 3), l + 3 < 32 ? -(l + 3) : -l);
    EXPECT_EQ(__shfl_down_sync(kAll, lane, 2, 8), lane % 8 < 6 ? lane + 2 : lane);
    EXPECT_EQ(__shfl_down_sync(kAll, 0.5F + static_cast<float>(l), 16),
              0.5F + static_cast<float>(l < 16 ? l + 16 : l));
    EXPECT_EQ(__shfl_up_sync(kAll, l, 2, 8), l % 8 < 2 ? l : l - 2);
    EXPECT_EQ(__shfl_sync(kAll, l, 3, 16), l / 16 * 16 + 3);
  });
}

TEST(EmulationLanguage, Reductions) {
  in_warp([](unsigned lane) {
    EXPECT_EQ(__reduce_add_sync(kAll, lane), 496U);
    EXPECT_EQ(__reduce_add_sync(kAll, 0x10000000U), 0U);  // wraps
    EXPECT_EQ(__reduce_add_sync(kAll, -static_cast<int>(lane)), -496);
  });
}

TEST(EmulationLanguage, Bits) {
  EXPECT_EQ(__popc(0xf00f0001U), 9);
  EXPECT_EQ(__popcll(0xf00000000000000fULL), 8);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(1), 1);
  EXPECT_EQ(__ffs(std::numeric_limits<int>::min()), 32);
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__clz(-1), 0);
  EXPECT_EQ(__float_as_uint(-2.0F), 0xc0000000U);
  EXPECT_EQ(__uint_as_float(0x3f800000U), 1.0F);
}

TEST(EmulationLanguage, Vectors) {
  static_assert(sizeof(float2) == 8 && alignof(float2) == 8 && sizeof(uint2) == 8);
  static_assert(sizeof(float4) == 16 && alignof(float4) == 16 && alignof(uint4) == 16);
  const float4 f = make_float4(1, 2, 3, 4);
  EXPECT_EQ(f.x + 10 * f.y + 100 * f.z + 1000 * f.w, 4321.0F);
  EXPECT_EQ(make_float2(1, 2).y, 2.0F);
  EXPECT_EQ(make_uint2(1, 2).y, 2U);
  DeviceBuffer<float4> memory(2);
  auto* floats = reinterpret_cast<float*>(memory.data());
  in_warp([&](unsigned lane) {
    if (lane != 0) return;
    ptx::store_f4(floats, f);
    ptx::store_16(floats + 4, make_uint4(5, 6, 7, 8));
    EXPECT_EQ(ptx::load_other_block_f4(floats).z, 3.0F);
    EXPECT_EQ(__float_as_uint(ptx::load_other_block(floats + 5)), 6U);
    EXPECT_THROW(ptx::store_f4(floats + 1, f), std::runtime_error);
    EXPECT_THROW(ptx::store_16(floats + 2, {}), std::runtime_error);
    EXPECT_THROW(ptx::load_other_block_f4(floats + 3), std::runtime_error);
  });
}

TEST(EmulationLanguage, AtomicsReturnTheOldValue) {
  int i = -3;
  unsigned u = 5;
  unsigned long long wide = 1ULL << 40;
  in_warp([&](unsigned lane) {
    if (lane != 0) return;
    EXPECT_EQ(atomicAdd(&i, 5), -3);
    EXPECT_EQ(atomicMax(&i, 1), 2);
    EXPECT_EQ(atomicMax(&i, 7), 2);
    EXPECT_EQ(atomicOr(&u, 10U), 5U);
    EXPECT_EQ(atomicAdd(&u, 1U), 15U);
    EXPECT_EQ(atomicAdd(&wide, 1ULL), 1ULL << 40);
  });
  EXPECT_EQ(i, 7);
  EXPECT_EQ(u, 16U);
  EXPECT_EQ(wide, (1ULL << 40) + 1);
}

// Lanes read what their neighbours wrote: wrong without the barrier.
TEST(EmulationLanguage, SyncwarpOrdersLanes) {
  for (const bool barrier : {true, false}) {
    bool right = true;
    std::array<unsigned, 32> words = {};
    in_warp([&](unsigned lane) {
      words.at(lane) = lane + 1;
      if (barrier) __syncwarp();
      __threadfence_block();
      right &= words.at((lane + 1) % 32) == (lane + 1) % 32 + 1;
    });
    EXPECT_EQ(right, barrier);
  }
}

TEST(EmulationLanguage, GridsHaveThreeAxes) {
  std::array<int, 24> seen = {};
  emulation::launch(dim3(2, 3, 4), dim3(1), 0, [&] {
    EXPECT_EQ(gridDim.x * 100 + gridDim.y * 10 + gridDim.z, 234U);
    seen.at(blockIdx.x + 2 * (blockIdx.y + 3 * blockIdx.z)) += 1;
  });
  for (const int times : seen) EXPECT_EQ(times, 1);
}

// The fragments' layout, as ptx/matrix.cuh documents it, against a plain product.
TEST(EmulationLanguage, MmaS8Multiplies) {
  static std::int8_t a[16][32], b[32][8];
  static int c[16][8];
  for (int k = 0; k < 32; ++k) {
    for (int i = 0; i < 16; ++i) a[i][k] = static_cast<std::int8_t>(i * 37 + k * 11);
    for (int j = 0; j < 8; ++j) b[k][j] = static_cast<std::int8_t>(k * 29 - j * 53);
  }
  a[3][5] = b[5][2] = -128;
  const auto four = [](int v0, int v1, int v2, int v3) {
    std::uint32_t word = 0;
    for (const int v : {v3, v2, v1, v0}) word = word << 8 | static_cast<std::uint8_t>(v);
    return word;
  };
  in_warp([&](unsigned lane) {
    const unsigned g = lane / 4;
    const unsigned t = lane % 4;
    const auto of_a = [&](unsigned row, unsigned k) {
      return four(a[row][k], a[row][k + 1], a[row][k + 2], a[row][k + 3]);
    };
    const auto of_b = [&](unsigned k) {
      return four(b[k][g], b[k + 1][g], b[k + 2][g], b[k + 3][g]);
    };
    const std::uint32_t words[4] = {of_a(g, 4 * t), of_a(g + 8, 4 * t), of_a(g, 4 * t + 16),
                                    of_a(g + 8, 4 * t + 16)};
    int sum[4] = {1000, 1000, 1000, std::numeric_limits<int>::max()};
    ptx::mma_s8(sum, words, of_b(4 * t), of_b(4 * t + 16));
    c[g][2 * t] = sum[0];
    c[g][2 * t + 1] = sum[1];
    c[g + 8][2 * t] = sum[2];
    c[g + 8][2 * t + 1] = sum[3];
  });
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 8; ++j) {
      const bool wraps = i >= 8 && j % 2 == 1;
      auto expected = static_cast<unsigned>(wraps ? std::numeric_limits<int>::max() : 1000);
      for (int k = 0; k < 32; ++k) expected += static_cast<unsigned>(a[i][k] * b[k][j]);
      ASSERT_EQ(c[i][j], static_cast<int>(expected)) << i << "," << j;
    }
  }
}

// Element (row, col) of matrix i is i · 64 + row · 8 + col.
TEST(EmulationLanguage, LdmatrixPlainAndTransposed) {
  in_warp(
      [](unsigned lane) {
        auto* shared = reinterpret_cast<std::uint16_t*>(ptx::dynamic_shared());
        for (unsigned e = 0; e < 8; ++e) {
          shared[lane * 8 + e] = static_cast<std::uint16_t>(lane * 8 + e);
        }
        __syncwarp();
        std::uint32_t plain[4], transposed[4];
        ptx::ldmatrix_x4(plain, lane * 16);
        ptx::ldmatrix_x4_trans(transposed, lane * 16);
        const unsigned g = lane / 4;
        const unsigned t = lane % 4;
        for (unsigned i = 0; i < 4; ++i) {
          const auto element = [&](unsigned row, unsigned col) { return i * 64 + row * 8 + col; };
          EXPECT_EQ(plain[i], element(g, 2 * t) | element(g, 2 * t + 1) << 16);
          EXPECT_EQ(transposed[i], element(2 * t, g) | element(2 * t + 1, g) << 16);
        }
      },
      32 * 16);
}

}  // namespace
}  // namespace twell
