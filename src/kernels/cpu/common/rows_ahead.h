// Rows of a weight that a kernel asks for while it works on others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace twell {
namespace {

// Functions that only prefetch are inlined by force, here and in the tiers: g++ takes one for free
// of effects, and drops the call where it has not inlined it before.

// Whole rows come from L3 or from memory. They go to L2, since L1 has few places for lines that are
// on their way: on a Zen 4 a row of 4 KB takes up to a third less time than four rows ahead to L1.
template <class Isa>
struct WholeRowsAhead {
  static constexpr std::int64_t kRows = 8;
  [[gnu::always_inline]] static void fetch(const void* line) { Isa::prefetch_l2(line); }
};

// Pieces of rows (TierTuning::gather_columns) are in L2.
template <class Isa>
struct PiecesAhead {
  static constexpr std::int64_t kRows = 4;
  [[gnu::always_inline]] static void fetch(const void* line) { Isa::prefetch(line); }
};

// Rows that are worked on together, from place i of a list on, and those to ask for meanwhile.
template <class Ahead, class T, std::size_t N, class Row>
void take_rows(std::int64_t i, Row row, const T* (&now)[N], const T* (&next)[N]) {
  for (std::size_t n = 0; n < N; ++n) {
    now[n] = row(i + static_cast<std::int64_t>(n));
    next[n] = row(i + Ahead::kRows + static_cast<std::int64_t>(n));
  }
}

// f<Ahead>() for rows of so many bytes.
template <class Isa, class F>
void with_rows_ahead(std::int64_t row_bytes, F f) {
  constexpr std::int64_t kPieceBytes = 512;
  if (row_bytes > kPieceBytes) {
    f.template operator()<WholeRowsAhead<Isa>>();
  } else {
    f.template operator()<PiecesAhead<Isa>>();
  }
}

}  // namespace
}  // namespace twell
