// int4 in panels (twell/packed.h): its numbers, and its products with x in terms.
#pragma once

#include "kernels/cpu/common/terms.h"
#include "kernels/cpu/common/widen.h"

namespace twell {
namespace {

template <class Isa>
struct Int4Codes {
  using V = typename Isa::V;
  using Term = std::int8_t;
  static constexpr WeightType kType = WeightType::int4;
  static constexpr std::int64_t kGroup = kInt4Group;
  static constexpr std::int64_t kLineInputs = 8;  // of 16 neurons
  static constexpr std::int64_t kLine = 64;
  static constexpr std::int64_t kGroupBytes = kPanel * kGroup / 2;
  static constexpr std::int64_t kBlockBytes = kInt4Head + kCodeBlock / kGroup * kGroupBytes;
  static constexpr int kRows = Isa::kInt4Rows;
  static constexpr int kOneTermRows = Isa::kInt4OneTermRows;
  static constexpr int kPanels = Isa::kInt4Panels;
  static constexpr int kMostTerms = 3;
  static constexpr int kVectors = kPanel / Isa::kLanes;

  static const std::uint8_t* bytes_of(const std::byte* block) {
    return reinterpret_cast<const std::uint8_t*>(block);
  }
  // The scales of vector v's neurons in group `group` of a block.
  static V scales(const std::byte* block, std::int64_t group, int v) {
    return Isa::group_scales(bytes_of(block) + group * kPanel + v * Isa::kLanes);
  }
  // Its codes of the eight inputs of a line.
  static const std::uint8_t* line(const std::byte* block, std::int64_t input, int v) {
    return bytes_of(block) + kInt4Head + input / kLineInputs * kLine + v * Isa::kLanes * 4;
  }

  // A panel's block as numbers of X.
  template <class X>
  static void widen(const std::byte* block, std::int64_t inputs, X* out) {
    // A code plus 8 but for its first bit is one of two's complement.
    constexpr std::uint32_t kFirstBits = 0x88888888U;
    for (std::int64_t k = 0; k < inputs; k += kLineInputs, out += kPanel * kLineInputs) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const V scale = scales(block, k / kGroup, v);
        widen_words<Isa, X, 4>(Isa::flip(Isa::load_words(line(block, k, v)), kFirstBits),
                               out + v * Isa::kLanes * static_cast<int>(4 / sizeof(X)),
                               [&](V code) { return Isa::mul(code, scale); });
      }
    }
  }

  // As Int8Codes::multiply. A group's sums in three terms are one integer of 31 bits.
  template <int Rows, int Panels, int kTerms>
  static void multiply(const CodeTerms* x, std::int64_t x_stride, const std::byte* block,
                       std::int64_t panel_stride, std::int64_t inputs, float* c, bool accumulate,
                       const std::byte* ahead) {
    constexpr int kColumns = Panels * kVectors;
    // What the last term counts.
    constexpr float kLow = kTerms == 3 ? 0x1p-16F : kTerms == 2 ? 0x1p-8F : 1.0F;
    const auto panel = [=](int v) { return block + v / kVectors * panel_stride; };
    V sums[Rows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kColumns; ++v) sums[r][v] = Isa::zero();
    }
    for (std::int64_t k = 0; k < inputs; k += kGroup) {
      typename Isa::NibbleSums of_terms[kTerms][Rows][kColumns] = {};
#pragma GCC unroll 4
      for (std::int64_t i = k; i < k + kGroup; i += kLineInputs) {
        for (int p = 0; Rows > 1 && ahead != nullptr && p < Panels; ++p) {
          Isa::prefetch_l2(line(ahead + p * panel_stride, i, 0));
        }
#pragma GCC unroll 4
        for (int v = 0; v < kColumns; ++v) {
          const auto codes = Isa::load_nibbles(line(panel(v), i, v % kVectors));
#pragma GCC unroll 16
          for (int r = 0; r < Rows; ++r) {
            const auto& terms = x[r * x_stride].bytes;
#pragma GCC unroll 3
            for (int t = 0; t < kTerms; ++t) {
              auto& sum = of_terms[t][r][v];
              sum = Isa::mac_nibbles(sum, codes.low, terms[t] + i);
              sum = Isa::mac_nibbles(sum, codes.high, terms[t] + i + kLineInputs / 2);
            }
          }
        }
      }
#pragma GCC unroll 4
      for (int v = 0; v < kColumns; ++v) {
        const V scale = scales(panel(v), k / kGroup, v % kVectors);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          auto sum = Isa::integers(of_terms[0][r][v]);
#pragma GCC unroll 2
          for (int t = 1; t < kTerms; ++t) {
            sum = Isa::next_digit(sum, Isa::integers(of_terms[t][r][v]));
          }
          sum = Isa::plus(sum, x[r * x_stride].groups[k / kGroup]);
          sums[r][v] = Isa::fma(Isa::to_float(sum), scale, sums[r][v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
      const V unit = Isa::broadcast(x[r * x_stride].unit * kLow);
#pragma GCC unroll 4
      for (int v = 0; v < kColumns; ++v) {
        float* to = c + r * kSumStride + v * Isa::kLanes;
        const V before = accumulate ? Isa::load(to) : Isa::zero();
        Isa::store(to, Isa::fma(sums[r][v], unit, before));
      }
    }
  }
};

}  // namespace
}  // namespace twell
