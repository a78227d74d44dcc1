// Chosen rows of a weight packed once, whole, for GEMMs of several blocks of rows.
//
// chosen_products.h packs them on the fly, again for every block. Where the blocks of a pass share
// them, once is better: rows of a weight lie 4 KB apart, so each costs a page walk for every 512
// bytes that are packed of it.
#pragma once

#include <span>

#include "ops/chosen_products.h"

namespace twell {

class PackedChosen {
 public:
  // What the rows are to a GEMM: its neurons, x Wᵀ, or its inputs, x W.
  enum class As { neurons, inputs };

  // As inputs, rows without a list are the first ones.
  PackedChosen(As as, const ChosenRows& rows) : as_(as), rows_(rows) {}
  std::size_t bytes() const;
  // In memory of bytes(), at a multiple of 64 bytes.
  void place(std::byte* memory) { panels_ = memory; }
  Weight view() const;

  // Units of work that may be packed at the same time.
  std::int64_t units() const;
  void pack(std::int64_t unit) const;

 private:
  As as_;
  ChosenRows rows_;
  std::byte* panels_ = nullptr;
};

// Finds room for them in the context's scratch (kPieces).
void place_all(Context& context, std::span<PackedChosen> all);

// The following are called by every thread of a parallel region; both end with a barrier.

void pack_all(Team& team, std::span<const PackedChosen> all);

// One product of a sum: the x of a GEMM and what it is multiplied with.
struct PackedTerm {
  GemmArgs x;  // but for c and the weight
  Weight w;
};
// layout: of the terms' x. take(row, column, width, sums) for pieces of Σ x · w over `terms`,
// [rows, w.rows]. `c`: the thread's accumulators, of packed_accumulator_bytes().
constexpr std::int64_t kPackedRows = 256;
constexpr std::size_t packed_accumulator_bytes() {
  return static_cast<std::size_t>(gemm_accumulators(kPackedRows)) * sizeof(float);
}
template <class Take>
void multiply_all(Team& team, const XLayout& layout, std::span<const PackedTerm> terms, float* c,
                  Take take) {
  const std::int64_t rows = terms[0].x.rows;
  const std::int64_t width = terms[0].w.rows;
  const std::int64_t groups = (rows + kPackedRows - 1) / kPackedRows;
  const std::int64_t columns = (width + kColumnBlock - 1) / kColumnBlock;
  const std::size_t element = size_of(layout.dtype);
  team.for_dynamic(columns * groups, 1, [&](std::int64_t unit) {
    const std::int64_t column = unit / groups * kColumnBlock;
    const std::int64_t first = unit % groups * kPackedRows;
    const std::int64_t count = std::min(kPackedRows, rows - first);
    const std::int64_t now = std::min(kColumnBlock, width - column);
    for (const PackedTerm& term : terms) {
      GemmArgs args = term.x;
      args.x = args.x_at(first, element);
      args.rows = count;
      args.weight = term.w;
      args.panel_begin = column / kPanel;
      args.panels = packed_panels(now);
      args.c = c;
      args.accumulate = &term != terms.data();
      term.w.kernels->gemm(args);
    }
    for (std::int64_t r = 0; r < count; ++r) take(first + r, column, now, c + r * kSumStride);
  });
}

}  // namespace twell
