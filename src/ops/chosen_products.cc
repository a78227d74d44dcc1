#include "ops/chosen_products.h"

#include <algorithm>

namespace twell {
namespace {

// c[row][j] (+)= Σ_i x[begin + row][i] · (chosen row i)[column + j], j < width <= kColumnBlock.
void combine_chosen(const ChosenTerm& term, std::int64_t begin, std::int64_t rows,
                    std::int64_t column, std::int64_t width, bool accumulate, void* panels,
                    float* c) {
  const auto& [w, list, all] = term.chosen;
  for (std::int64_t first = 0; first < all; first += kChosenDepth) {
    const std::int64_t count = std::min(kChosenDepth, all - first);
    w.kernels->pack_inputs(w, list + first, count, column, width, panels);
    const Weight packed = w.packed(panels, width, count);
    GemmArgs args;
    args.x = term.x.at(begin, first);
    args.x_stride = term.x.stride;
    args.rows = rows;
    args.weight = packed;
    args.panels = packed_panels(width);
    args.c = c;
    args.accumulate = accumulate || first > 0;
    packed.kernels->gemm(args);
  }
}

}  // namespace

GemmArgs SparseX::args(std::int64_t rows) const {
  GemmArgs args;
  args.x = data;
  args.x_stride = stride;
  args.rows = rows;
  return args;
}

void SparseX::clear_row(std::int64_t row) const {
  std::fill_n(at(row, 0), static_cast<std::size_t>(stride) * size_of(dtype), std::byte{});
}

void SparseX::set_row(std::int64_t row, const float* values, std::int64_t count,
                      const Kernels& kernels) const {
  std::byte* const to = at(row, 0);
  if (dtype == DType::f32) {
    std::copy_n(values, count, reinterpret_cast<float*>(to));
  } else {
    kernels.round_row(values, count, to);
  }
  std::fill_n(at(row, count), static_cast<std::size_t>(stride - count) * size_of(dtype),
              std::byte{});
}

void pack_as_neurons(const ChosenRows& rows, std::int64_t first, std::int64_t count, void* panels) {
  const Weight& w = rows.w;
  auto* to = static_cast<std::byte*>(panels);
  for (std::int64_t n = 0; n < count; n += kPanel) {
    std::int32_t neurons[kPanel];
    for (std::int64_t j = 0; j < kPanel; ++j) {  // the last one again, where there is no other
      neurons[j] = rows.list[first + std::min(n + j, count - 1)];
    }
    w.kernels->pack_neurons(w, neurons, to);
    to += packed_bytes(w.panel_type, kPanel, w.cols);
  }
}

void dot_chosen(GemmArgs x, const ChosenRows& rows, std::int64_t first, std::int64_t count,
                void* panels) {
  pack_as_neurons(rows, first, count, panels);
  const Weight packed = rows.w.packed(panels, count, rows.w.cols);
  x.weight = packed;
  x.panels = packed_panels(count);
  packed.kernels->gemm(x);
  if (rows.w.scales == nullptr) return;
  float scales[kChosenNeurons];
  for (std::int64_t j = 0; j < count; ++j) scales[j] = rows.w.row_scale(rows.list[first + j]);
  for (std::int64_t row = 0; row < x.rows; ++row) {
    float* const c = x.c + row * kSumStride;
    for (std::int64_t j = 0; j < count; ++j) c[j] *= scales[j];
  }
}

void combine_all_chosen(Team& team, std::span<const ChosenTerm> terms, std::int64_t rows,
                        void* panels, float* c, float* sums) {
  constexpr std::int64_t kLeastRows = 128;  // panels are packed again for each group of rows
  const std::int64_t all = terms[0].chosen.w.cols;
  const std::int64_t pieces = (all + kColumnBlock - 1) / kColumnBlock;
  const std::int64_t wanted = (team.threads() + pieces - 1) / pieces;
  const std::int64_t groups = std::clamp<std::int64_t>(rows / kLeastRows, 1, wanted);
  team.for_dynamic(pieces * groups, 1, [&](std::int64_t unit) {
    const std::int64_t column = unit % pieces * kColumnBlock;
    const std::int64_t width = std::min(kColumnBlock, all - column);
    const std::int64_t begin = rows * (unit / pieces) / groups;
    const std::int64_t count = rows * (unit / pieces + 1) / groups - begin;
    for (const ChosenTerm& term : terms) {
      combine_chosen(term, begin, count, column, width, &term != terms.data(), panels, c);
    }
    for (std::int64_t row = 0; row < count; ++row) {
      std::copy_n(c + row * kSumStride, width, sums + (begin + row) * all + column);
    }
  });
}

}  // namespace twell
