// Few rows of x, in terms (CodeTerms), times codes: integer products, while the codes stream by.
// Codes that become numbers first take four times as many instructions at one row.
#pragma once

#include <cmath>
#include <limits>

#include "kernels/cpu/common/panel_blocks.h"
#include "kernels/cpu/common/row_panels.h"

namespace twell {
namespace {

// x · 2²² / 2ᵉ, rounded, in three signed digits to base 256; 2ᵉ is above every |x|.
inline void split(const float* numbers, int exponent, std::int8_t (&digits)[3][kCodeBlock]) {
  const float scale = std::ldexp(1.0F, 22 - exponent);
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    // At most 2²², so the nearest integer is the sum with 1.5 · 2²³ less that.
    const auto v = static_cast<std::int32_t>((numbers[k] * scale + 0x1.8p23F) - 0x1.8p23F);
    const std::int32_t upper = (v + 128) >> 8;
    const std::int32_t top = (upper + 128) >> 8;
    digits[0][k] = static_cast<std::int8_t>(top);
    digits[1][k] = static_cast<std::int8_t>(upper - top * 256);
    digits[2][k] = static_cast<std::int8_t>(v - upper * 256);
  }
}
// x · 2¹⁵ / 2ᵉ: a whole part and the rest in 2¹⁵ths.
inline void split(const float* numbers, int exponent, std::int16_t (&words)[2][kCodeBlock]) {
  constexpr float kRound = 0x1.8p23F, kMost = 32767;
  const float scale = std::ldexp(1.0F, 15 - exponent);
  std::int16_t whole[kCodeBlock], rest[kCodeBlock];
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const float v = numbers[k] * scale;
    const float nearest = (v + kRound) - kRound;
    const float high = nearest > kMost ? kMost : nearest < -kMost ? -kMost : nearest;
    whole[k] = static_cast<std::int16_t>(static_cast<std::int32_t>(high));
    rest[k] = static_cast<std::int16_t>(
        static_cast<std::int32_t>(((v - high) * 0x1p15F + kRound) - kRound));
  }
  for (std::int64_t k = 0; k < kCodeBlock; ++k) {
    const std::int64_t from = k % 4 == 1 ? k + 1 : k % 4 == 2 ? k - 1 : k;
    words[0][k] = whole[from];
    words[1][k] = rest[from];
  }
}

inline auto& terms_of(CodeTerms& x, std::int8_t) { return x.bytes; }
inline auto& terms_of(CodeTerms& x, std::int16_t) { return x.words; }
inline const auto& terms_of(const CodeTerms& x, std::int8_t) { return x.bytes; }
inline const auto& terms_of(const CodeTerms& x, std::int16_t) { return x.words; }

template <class Isa, class T>
void to_terms(const void* x_row, std::int64_t cols, CodeTerms* to) {
  using Term = typename Isa::Term;
  constexpr int kBits = sizeof(Term) == 1 ? 6 : 15;  // of the first term
  const T* x = static_cast<const T*>(x_row);
  for (; cols > 0; x += kCodeBlock, cols -= kCodeBlock, ++to) {
    const std::int64_t inputs = std::min(cols, kCodeBlock);
    float numbers[kCodeBlock] = {};
    float largest = 0;
    for (std::int64_t k = 0; k < inputs; ++k) numbers[k] = static_cast<float>(x[k]);
    for (const float v : numbers) largest = std::max(largest, std::abs(v));
    // Below, what x is multiplied by could overflow.
    constexpr float kLeast = 1e-30F;
    if (!all_finite<T>(x, inputs) || (largest > 0 && largest < kLeast)) {
      to->unit = std::numeric_limits<float>::quiet_NaN();
      std::copy_n(numbers, kCodeBlock, to->numbers);
      continue;
    }
    int exponent = 0;
    (void)std::frexp(largest, &exponent);
    to->unit = std::ldexp(1.0F, exponent - kBits);
    auto& terms = terms_of(*to, Term{});
    split(numbers, exponent, terms);
    for (std::size_t t = 0; t < std::size(terms); ++t) {
      std::int32_t sum = 0;
      for (const Term term : terms[t]) sum += term;
      to->sums[t] = sum;
    }
  }
}

template <class Isa>
struct TermsGemm {
  using V = typename Isa::V;
  using I = typename Isa::I;
  using Term = typename Isa::Term;
  static constexpr int kTerms = sizeof(Term) == 1 ? 3 : 2;
  static constexpr float kBase = sizeof(Term) == 1 ? 0x1p8F : 0x1p15F;
  static constexpr int kVectors = kPanel / Isa::kLanes;
  static constexpr std::int64_t kStep = kCodeStep;

  // Where the codes of vector v of a block's panels begin.
  static const std::int8_t* codes_of(const std::int8_t* block, std::int64_t panel_stride, int v) {
    return block + (v / kVectors) * panel_stride + kCodeHead * kPanel +
           (v % kVectors) * Isa::kLanes * kStep;
  }

  // One block of inputs: c[Rows × Panels·16] (+)= x · codes. Codes from `ahead` on (null: none) are
  // brought to L2 meanwhile.
  template <int Rows, int Panels>
  static void micro(const CodeTerms* x, std::int64_t x_stride, const std::int8_t* block,
                    std::int64_t panel_stride, std::int64_t inputs, float* c, bool accumulate,
                    const std::int8_t* ahead) {
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
      if (ahead != nullptr) Isa::prefetch_l2(ahead + k * kPanel);
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
        for (int t = 0; t < kTerms; ++t, unit /= kBase) {
          of_terms[t] = Isa::mul(Isa::to_float(sums[t][r][v]), Isa::broadcast(unit));
        }
#pragma GCC unroll 3
        for (int t = kTerms - 1; t >= 0; --t) sum = Isa::add(sum, of_terms[t]);
        Isa::store(to, sum);
      }
    }
  }

  template <int Rows, int Panels, class... Rest>
  static void tail(std::int64_t rows, Rest... rest) {
    if constexpr (Rows > 0) {
      if (rows == Rows) {
        micro<Rows, Panels>(rest...);
      } else {
        tail<Rows - 1, Panels>(rows, rest...);
      }
    }
  }

  // The same with the numbers of one row.
  template <int Panels>
  static void multiply_numbers(const CodeTerms& x, const std::int8_t* block,
                               std::int64_t panel_stride, std::int64_t inputs, float* c,
                               bool accumulate) {
    for (int v = 0; v < Panels * kVectors; ++v) {
      const std::int8_t* const codes = codes_of(block, panel_stride, v);
      float* const to = c + v * Isa::kLanes;
      V sum = accumulate ? Isa::load(to) : Isa::zero();
      for (std::int64_t k = 0; k < inputs; k += kStep) {
        const auto w = Isa::template widen<float>(codes + k * kPanel);
        for (std::int64_t i = 0; i < kStep; ++i) {
          sum = Isa::fma(w.of[i], Isa::broadcast(x.numbers[k + i]), sum);
        }
      }
      Isa::store(to, sum);
    }
  }

  template <int Panels>
  static void rows_by_panels(const CodeTerms* x, std::int64_t x_stride, std::int64_t rows,
                             const std::int8_t* block, std::int64_t panel_stride,
                             std::int64_t inputs, float* c, bool accumulate,
                             const std::int8_t* ahead) {
    constexpr int kRows = Isa::kTermsRows;
    for (std::int64_t r = 0; r < rows; r += kRows) {
      const std::int64_t count = std::min<std::int64_t>(kRows, rows - r);
      const CodeTerms* of_rows = x + r * x_stride;
      float* to = c + r * kSumStride;
      bool terms = true;
      for (std::int64_t i = 0; i < count; ++i) terms &= !std::isnan(of_rows[i * x_stride].unit);
      if (terms) {
        tail<kRows, Panels>(count, of_rows, x_stride, block, panel_stride, inputs, to, accumulate,
                            r == 0 ? ahead : nullptr);
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i, of_rows += x_stride, to += kSumStride) {
        if (std::isnan(of_rows->unit)) {
          multiply_numbers<Panels>(*of_rows, block, panel_stride, inputs, to, accumulate);
        } else {
          micro<1, Panels>(of_rows, x_stride, block, panel_stride, inputs, to, accumulate, nullptr);
        }
      }
    }
  }

  static void run(const GemmArgs& args) {
    const std::int64_t cols = args.weight.cols;
    const std::int64_t stride = code_panel_bytes(cols);
    const std::int64_t blocks = code_blocks(cols);
    const auto* codes =
        static_cast<const std::int8_t*>(args.weight.data) + args.panel_begin * stride;
    const std::int64_t panels_there = packed_panels(args.weight.rows) - args.panel_begin;
    const auto at = [&](PanelBlock place) {
      return codes + place.panel * stride + place.block * kPanel * (kCodeHead + kCodeBlock);
    };
    for_panel_blocks<Isa::kTermsPanels>(
        args.panels, blocks, true, [&]<int Panels>(PanelBlock here, PanelBlock next) {
          const std::int64_t inputs = std::min(kCodeBlock, cols - here.block * kCodeBlock);
          rows_by_panels<Panels>(args.terms + here.block, blocks, args.rows, at(here), stride,
                                 inputs, args.c + here.panel * kPanel, here.block > 0,
                                 next.panel + Panels <= panels_there ? at(next) : nullptr);
        });
  }
};

}  // namespace
}  // namespace twell
