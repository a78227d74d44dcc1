// Rows of x in terms (CodeTerms) times codes: integer products. A few rows, while the codes stream
// by: codes that become numbers first take four times as many instructions at one row. And any
// number of rows in one term, whose products are the fastest there are.
#pragma once

#include "kernels/cpu/common/panel_blocks.h"
#include "kernels/cpu/common/terms.h"

namespace twell {
namespace {

// Codes: Int8Codes or Int4Codes.
template <class Isa, class Codes>
struct TermsGemm {
  using V = typename Isa::V;

  // Rows that are multiplied at a time.
  static constexpr int rows_at_once(std::int32_t terms) {
    return terms == 1 ? Codes::kOneTermRows : Codes::kRows;
  }
  // Up to `Most` rows of `Terms` terms.
  template <int Most, int Panels, int Terms, class... Rest>
  static void multiply_rows(std::int64_t rows, Rest... rest) {
    if (rows == Most) {
      Codes::template multiply<Most, Panels, Terms>(rest...);
    } else if constexpr (Most > 1) {
      multiply_rows<Most - 1, Panels, Terms>(rows, rest...);
    }
  }
  // Up to rows_at_once(terms) rows.
  template <int Panels, class... Rest>
  static void multiply(std::int64_t rows, std::int32_t terms, Rest... rest) {
    if (terms == 1) {
      multiply_rows<rows_at_once(1), Panels, 1>(rows, rest...);
    } else if (terms == 2) {
      multiply_rows<rows_at_once(2), Panels, 2>(rows, rest...);
    } else if constexpr (Codes::kMostTerms == 3) {
      multiply_rows<rows_at_once(3), Panels, 3>(rows, rest...);
    }
  }

  // The same with the numbers of one row.
  template <int Panels>
  static void multiply_numbers(const CodeTerms& x, const std::byte* block,
                               std::int64_t panel_stride, std::int64_t inputs, float* c,
                               bool accumulate) {
    for (int p = 0; p < Panels; ++p, block += panel_stride, c += kPanel) {
      alignas(64) float codes[kPanel * kCodeBlock];
      Codes::template widen<float>(block, inputs, codes);
      for (std::int64_t n = 0; n < kPanel; n += Isa::kLanes) {
        V sum = accumulate ? Isa::load(c + n) : Isa::zero();
        for (std::int64_t k = 0; k < inputs; ++k) {
          sum = Isa::fma(Isa::load(codes + k * kPanel + n), Isa::broadcast(x.numbers[k]), sum);
        }
        Isa::store(c + n, sum);
      }
    }
  }

  template <int Panels>
  static void rows_by_panels(const CodeTerms* x, std::int64_t x_stride, std::int64_t rows,
                             const std::byte* block, std::int64_t panel_stride, std::int64_t inputs,
                             float* c, bool accumulate, const std::byte* ahead) {
    std::int64_t count = 0;
    for (std::int64_t r = 0; r < rows; r += count) {
      const CodeTerms* of_rows = x + r * x_stride;
      const bool split = !std::isnan(of_rows->unit);
      count = std::min<std::int64_t>(split ? rows_at_once(of_rows->count) : 1, rows - r);
      float* to = c + r * kSumStride;
      bool alike = true;
      for (std::int64_t i = 0; i < count; ++i) {
        const CodeTerms& row = of_rows[i * x_stride];
        alike &= !std::isnan(row.unit) && row.count == of_rows->count;
      }
      if (alike) {
        multiply<Panels>(count, of_rows->count, of_rows, x_stride, block, panel_stride, inputs, to,
                         accumulate, r == 0 ? ahead : nullptr);
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i, of_rows += x_stride, to += kSumStride) {
        if (std::isnan(of_rows->unit)) {
          multiply_numbers<Panels>(*of_rows, block, panel_stride, inputs, to, accumulate);
        } else {
          multiply<Panels>(1, of_rows->count, of_rows, x_stride, block, panel_stride, inputs, to,
                           accumulate, static_cast<const std::byte*>(nullptr));
        }
      }
    }
  }

  static void run(const GemmArgs& args) {
    const std::int64_t cols = args.weight.cols;
    const std::int64_t depth = packed_depth(Codes::kType, cols);
    const std::int64_t stride = panel_bytes(Codes::kType, cols);
    const std::int64_t blocks = code_blocks(cols);
    const auto* codes = static_cast<const std::byte*>(args.weight.data) + args.panel_begin * stride;
    const std::int64_t panels_there = packed_panels(args.weight.rows) - args.panel_begin;
    const auto at = [&](PanelBlock place) {
      return codes + place.panel * stride + place.block * Codes::kBlockBytes;
    };
    const auto step = [&]<int Panels>(PanelBlock here, PanelBlock next) {
      const std::int64_t inputs = std::min(kCodeBlock, depth - here.block * kCodeBlock);
      rows_by_panels<Panels>(args.terms + here.block, blocks, args.rows, at(here), stride, inputs,
                             args.c + here.panel * kPanel, here.block > 0,
                             next.panel + Panels <= panels_there ? at(next) : nullptr);
    };
    // One row waits for memory, which is read fastest from end to end: int4 takes a third less time
    // than by two panels at a time.
    constexpr std::int64_t kFewRows = 16;
    if (args.rows == 1) {
      for_panel_blocks<1>(args.panels, blocks, true, step);
    } else {
      for_panel_blocks<Codes::kPanels>(args.panels, blocks, args.rows <= kFewRows, step);
    }
  }
};

}  // namespace
}  // namespace twell
