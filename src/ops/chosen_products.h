// Dense products with chosen rows of a weight, which are packed on the fly for the tier's GEMM.
#pragma once

#include <algorithm>
#include <span>

#include "core/team.h"
#include "ops/weight.h"
#include "twell/tuning.h"

namespace twell {

// Neurons of one dot_chosen(): 512 KB of panels at D = 2048.
constexpr std::int64_t kChosenNeurons = 128;
// Inputs that combine_all_chosen() packs at a time. Not 512: the panels would lie 16 KB apart, all
// in the same sets of L1.
constexpr std::int64_t kChosenDepth = 480;

// Bytes of `panels` below, for rows of `width` elements.
constexpr std::size_t chosen_panel_bytes(WeightType type, std::int64_t width) {
  const std::size_t neurons = packed_bytes(type, kChosenNeurons, width);
  const std::size_t inputs = packed_bytes(type, kColumnBlock, kChosenDepth);
  return neurons > inputs ? neurons : inputs;
}

// Rows of a weight, in the order of a list.
struct ChosenRows {
  Weight w;
  const std::int32_t* list = nullptr;
  std::int64_t count = 0;
};

// Where an x for the GEMM is made element by element: zeros but for what is set.
struct SparseX {
  std::byte* data = nullptr;  // [rows, stride], of the tier's XLayout
  std::int64_t stride = 0;
  DType dtype = DType::bf16;

  // From row to row, of `cols` columns.
  static std::int64_t stride_of(const XLayout& layout, std::int64_t cols) {
    return spread_stride(packed_depth(WeightType::bf16, cols), size_of(layout.dtype));
  }
  std::byte* at(std::int64_t row, std::int64_t col) const {
    return data + static_cast<std::size_t>(row * stride + col) * size_of(dtype);
  }
  // As the x of a GEMM: its first `rows` rows.
  GemmArgs args(std::int64_t rows) const;
  void clear_row(std::int64_t row) const;
  // `count` values, rounded where x is bf16, and zeros behind them.
  void set_row(std::int64_t row, const float* values, std::int64_t count,
               const Kernels& kernels) const;
  float value(std::int64_t row, std::int64_t col) const {
    return dtype == DType::f32
               ? reinterpret_cast<const float*>(data)[row * stride + col]
               : static_cast<float>(reinterpret_cast<const bf16*>(data)[row * stride + col]);
  }
  void set(std::int64_t row, std::int64_t col, float value) const {
    if (dtype == DType::f32) {
      reinterpret_cast<float*>(data)[row * stride + col] = value;
    } else {
      reinterpret_cast<bf16*>(data)[row * stride + col] = bf16(value);
    }
  }
};

// Rows [first, first + count) as panels of neurons.
void pack_as_neurons(const ChosenRows& rows, std::int64_t first, std::int64_t count, void* panels);
// x.c[row][j] = dot(x row, chosen row first + j), j < count <= kChosenNeurons. Sets the weight of
// `x`.
void dot_chosen(GemmArgs x, const ChosenRows& rows, std::int64_t first, std::int64_t count,
                void* panels);
// How many of `count` a thread takes at a time, so that few of them are work for all.
inline std::int64_t chosen_of_unit(std::int64_t count, int threads) {
  constexpr std::int64_t kPanels = 4 * kPanel;  // what kernels take at a time
  const std::int64_t share = (count + threads - 1) / threads;
  return std::clamp((share + kPanels - 1) / kPanels * kPanels, kPanels, kChosenNeurons);
}
// Sums to rows of `width`: what the products below may hand them to.
inline auto copy_to(float* sums, std::int64_t width) {
  return [=](std::int64_t row, std::int64_t column, std::int64_t count, const float* from) {
    std::copy_n(from, count, sums + row * width + column);
  };
}

// Products with all chosen rows and all columns. Called by every thread of a parallel region, with
// panels and accumulators c of its own; each ends with a barrier.

// take(row, first, count, sums) for each row of x and some chosen rows at a time: sums[j] is its
// dot product with chosen row first + j. x.c are the accumulators.
template <class Take>
void dot_all_chosen(Team& team, const GemmArgs& x, const ChosenRows& rows, void* panels,
                    Take take) {
  const std::int64_t width = chosen_of_unit(rows.count, team.threads());
  team.for_dynamic((rows.count + width - 1) / width, 1, [&](std::int64_t unit) {
    const std::int64_t first = unit * width;
    const std::int64_t count = std::min(width, rows.count - first);
    dot_chosen(x, rows, first, count, panels);
    for (std::int64_t row = 0; row < x.rows; ++row) {
      take(row, first, count, x.c + row * kSumStride);
    }
  });
}

// sums [rows, D] = Σ over `terms` of x · chosen rows.
struct ChosenTerm {
  SparseX x;
  ChosenRows chosen;
};
void combine_all_chosen(Team& team, std::span<const ChosenTerm> terms, std::int64_t rows,
                        void* panels, float* c, float* sums);

}  // namespace twell
