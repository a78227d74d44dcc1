// int8 in panels (twell/packed.h): its numbers, and its products with x in terms.
#pragma once

#include "kernels/cpu/common/terms.h"
#include "kernels/cpu/common/widen.h"

namespace twell {
namespace {

template <class Isa>
struct Int8Codes {
  using V = typename Isa::V;
  using I = typename Isa::I;
  using Term = typename Isa::Term;
  static constexpr WeightType kType = WeightType::int8;
  static constexpr std::int64_t kBlockBytes = kPanel * (kCodeBlock + kCodeHead);
  static constexpr int kRows = Isa::kTermsRows;
  static constexpr int kOneTermRows = Isa::kOneTermRows;
  static constexpr int kPanels = Isa::kTermsPanels;
  static constexpr int kMostTerms = sizeof(Term) == 1 ? 3 : 2;
  static constexpr float kBase = sizeof(Term) == 1 ? 0x1p8F : 0x1p15F;
  static constexpr int kVectors = kPanel / Isa::kLanes;
  static constexpr std::int64_t kStep = kCodeStep;

  // A panel's block as numbers of X.
  template <class X>
  static void widen(const std::byte* block, std::int64_t inputs, X* out) {
    const std::int8_t* codes = codes_of(block, 0, 0);
    for (std::int64_t k = 0; k < inputs; k += kStep, out += kPanel * kStep) {
      widen_step<Isa>(codes + k * kPanel, out);
    }
  }

  // Where the codes of vector v of a block's panels begin.
  static const std::int8_t* codes_of(const std::byte* block, std::int64_t panel_stride, int v) {
    return reinterpret_cast<const std::int8_t*>(block + (v / kVectors) * panel_stride) +
           kCodeHead * kPanel + (v % kVectors) * Isa::kLanes * kStep;
  }

  // One block of inputs: c[Rows × Panels·16] (+)= x · codes, x in so many terms. Codes of the block
  // `ahead` (null: none) are brought to L2 meanwhile: a tenth faster with two rows, and slower with
  // one, which a processor reads ahead for by itself.
  template <int Rows, int Panels, int kTerms>
  static void multiply(const CodeTerms* x, std::int64_t x_stride, const std::byte* block,
                       std::int64_t panel_stride, std::int64_t inputs, float* c, bool accumulate,
                       const std::byte* ahead) {
    constexpr int kColumns = Panels * kVectors;
    I sums[kTerms][Rows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
#pragma GCC unroll 3
        for (int t = 0; t < kTerms; ++t) {
          sums[t][r][v] = Isa::terms_begin(x[r * x_stride].sums[t]);
        }
      }
    }
    for (std::int64_t k = 0; k < inputs; k += kStep) {
      for (int p = 0; Rows > 1 && ahead != nullptr && p < Panels; ++p) {
        Isa::prefetch_l2(ahead + p * panel_stride + k * kPanel);
      }
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        const auto w = Isa::load_terms_codes(codes_of(block, panel_stride, v) + k * kPanel);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) {
          const auto& terms = terms_of(x[r * x_stride], Term{});
#pragma GCC unroll 3
          for (int t = 0; t < kTerms; ++t) {
            sums[t][r][v] = Isa::mac(sums[t][r][v], w, terms[t] + k);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        float* to = c + r * kSumStride + v * Isa::kLanes;
        V sum = accumulate ? Isa::load(to) : Isa::zero();
        float unit = x[r * x_stride].unit;
        V of_terms[kTerms];
#pragma GCC unroll 3
        for (int t = 1; t < kTerms; ++t) {
          unit /= kBase;
          of_terms[t] = Isa::mul(Isa::to_float(sums[t][r][v]), Isa::broadcast(unit));
        }
#pragma GCC unroll 3
        for (int t = kTerms - 1; t >= 1; --t) sum = Isa::add(sum, of_terms[t]);
        const V unit0 = Isa::broadcast(x[r * x_stride].unit);
        Isa::store(to, Isa::fma(Isa::to_float(sums[0][r][v]), unit0, sum));
      }
    }
  }
};

}  // namespace
}  // namespace twell
