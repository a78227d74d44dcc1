// Twins of cuda/kernels/ptx/matrix.cuh and convert.cuh.
#include <cuda_runtime.h>

#include <bit>
#include <cstring>

#include "cuda/tests/emulation/fibers.h"
#include "cuda/tests/support/half.h"
#include "twell/dtype.h"

namespace twell::cuda::ptx {
namespace {

using emulation::require;
using emulation::shared_at;

struct Ldmatrix {
  std::uint32_t address;
  std::uint32_t result[4];
};
void combine_ldmatrix(void* const* lanes) {
  for (int l = 0; l < 32; ++l) require(lanes[l] != nullptr, "ldmatrix without all lanes");
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < 4; ++i) {
      // Element pair l % 4 of row l / 4 of matrix i, whose address lane i * 8 + l / 4 gives.
      const auto& row = *static_cast<Ldmatrix*>(lanes[i * 8 + l / 4]);
      std::memcpy(&static_cast<Ldmatrix*>(lanes[l])->result[i],
                  shared_at(row.address, 16) + l % 4 * 4, 4);
    }
  }
}
void combine_ldmatrix_trans(void* const* lanes) {
  for (int l = 0; l < 32; ++l) require(lanes[l] != nullptr, "ldmatrix without all lanes");
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < 4; ++i) {
      std::uint16_t pair[2];
      for (int e = 0; e < 2; ++e) {
        const auto& row = *static_cast<Ldmatrix*>(lanes[i * 8 + l % 4 * 2 + e]);
        std::memcpy(&pair[e], shared_at(row.address, 16) + l / 4 * 2, 2);
      }
      std::memcpy(&static_cast<Ldmatrix*>(lanes[l])->result[i], pair, 4);
    }
  }
}

struct Mma {
  float c[4];
  std::uint32_t a[4];
  std::uint32_t b[2];
};
float low_bf16(std::uint32_t word) { return std::bit_cast<float>(word << 16); }
float high_bf16(std::uint32_t word) { return std::bit_cast<float>(word & 0xffff0000U); }
float low_f16(std::uint32_t word) { return test::widen_half(static_cast<std::uint16_t>(word)); }
float high_f16(std::uint32_t word) {
  return test::widen_half(static_cast<std::uint16_t>(word >> 16));
}

template <float (*kLow)(std::uint32_t), float (*kHigh)(std::uint32_t)>
void combine_mma(void* const* lanes) {
  float a[16][16];
  float b[16][8];
  for (int l = 0; l < 32; ++l) {
    require(lanes[l] != nullptr, "mma without all lanes");
    const auto& own = *static_cast<Mma*>(lanes[l]);
    const int g = l / 4;
    const int t = l % 4;
    for (int i = 0; i < 4; ++i) {
      a[g + i % 2 * 8][2 * t + i / 2 * 8] = kLow(own.a[i]);
      a[g + i % 2 * 8][2 * t + i / 2 * 8 + 1] = kHigh(own.a[i]);
    }
    for (int i = 0; i < 2; ++i) {
      b[2 * t + i * 8][g] = kLow(own.b[i]);
      b[2 * t + i * 8 + 1][g] = kHigh(own.b[i]);
    }
  }
  for (int l = 0; l < 32; ++l) {
    auto& own = *static_cast<Mma*>(lanes[l]);
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + i / 2 * 8;
      const int col = l % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) own.c[i] += a[row][k] * b[k][col];
    }
  }
}

template <float (*kLow)(std::uint32_t), float (*kHigh)(std::uint32_t)>
void mma(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  Mma own{{c[0], c[1], c[2], c[3]}, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulation::warp_collective("mma", &own, combine_mma<kLow, kHigh>);
  std::memcpy(c, own.c, sizeof c);
}

struct MmaS8 {
  int c[4];
  std::int8_t a[4][4];
  std::int8_t b[2][4];
};
void combine_mma_s8(void* const* lanes) {
  int a[16][32];
  int b[32][8];
  for (int l = 0; l < 32; ++l) {
    require(lanes[l] != nullptr, "mma without all lanes");
    const auto& own = *static_cast<MmaS8*>(lanes[l]);
    const int g = l / 4;
    for (int e = 0; e < 4; ++e) {
      const int k = l % 4 * 4 + e;
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][k + i / 2 * 16] = own.a[i][e];
      for (int i = 0; i < 2; ++i) b[k + i * 16][g] = own.b[i][e];
    }
  }
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < 4; ++i) {
      const int row = l / 4 + i / 2 * 8;
      const int col = l % 4 * 2 + i % 2;
      int sum = 0;  // of magnitude below 2^20; added to c it wraps, as without .satfinite
      for (int k = 0; k < 32; ++k) sum += a[row][k] * b[k][col];
      int& c = static_cast<MmaS8*>(lanes[l])->c[i];
      c = static_cast<int>(static_cast<unsigned>(c) + static_cast<unsigned>(sum));
    }
  }
}

}  // namespace

void ldmatrix_x4_trans(std::uint32_t (&to)[4], std::uint32_t address) {
  Ldmatrix own{address, {}};
  emulation::warp_collective("ldmatrix.trans", &own, combine_ldmatrix_trans);
  std::memcpy(to, own.result, sizeof to);
}

void mma_s8(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  MmaS8 own;
  const std::uint32_t b[2] = {b0, b1};
  std::memcpy(own.c, c, sizeof c);
  std::memcpy(own.a, a, sizeof a);
  std::memcpy(own.b, b, sizeof b);
  emulation::warp_collective("mma.s8", &own, combine_mma_s8);
  std::memcpy(c, own.c, sizeof c);
}

void ldmatrix_x4(std::uint32_t (&to)[4], std::uint32_t address) {
  Ldmatrix own{address, {}};
  emulation::warp_collective("ldmatrix", &own, combine_ldmatrix);
  std::memcpy(to, own.result, sizeof to);
}

void mma_bf16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  mma<low_bf16, high_bf16>(c, a, b0, b1);
}
void mma_f16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  mma<low_f16, high_f16>(c, a, b0, b1);
}

std::uint32_t round_bf16x2(float low, float high) {
  return static_cast<std::uint32_t>(bf16(low).bits) | static_cast<std::uint32_t>(bf16(high).bits)
                                                          << 16;
}
std::uint32_t round_f16x2(float low, float high) {
  return static_cast<std::uint32_t>(test::round_half(low)) |
         static_cast<std::uint32_t>(test::round_half(high)) << 16;
}
namespace {

// max.NaN: the canonical NaN of any NaN; +0 of zeros.
std::uint32_t relu2(std::uint32_t word, std::uint32_t infinity) {
  std::uint32_t out = 0;
  for (int half = 0; half < 32; half += 16) {
    const std::uint32_t bits = word >> half & 0xffffU;
    const bool nan = (bits & 0x7fffU) > infinity;
    out |= (nan ? 0x7fffU : bits >= 0x8000U ? 0U : bits) << half;
  }
  return out;
}

}  // namespace
std::uint32_t relu_bf16x2(std::uint32_t word) { return relu2(word, 0x7f80U); }
std::uint32_t relu_f16x2(std::uint32_t word) { return relu2(word, 0x7c00U); }
float widen_f16(std::uint16_t bits) { return test::widen_half(bits); }

}  // namespace twell::cuda::ptx
