// Counts of any number of calls of one layer, added up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "twell/ffn.h"

namespace twell::lm {

struct FfnTotals {
  std::int64_t calls = 0;
  std::int64_t rows = 0;  // tokens seen
  std::int64_t nnz = 0;   // non-zeros of the activated gate, all tokens
  std::int64_t nnz_max = 0;
  std::int64_t active = 0;  // neurons that fired in a call, summed over calls
  double l1 = 0.0;
  std::vector<std::int64_t> neuron_nnz;     // [H] tokens that made the neuron fire
  std::vector<std::int64_t> position_rows;  // by position in its sequence
  std::vector<std::int64_t> position_nnz;

  // `positions`: of the call's rows in their sequences, or empty.
  void add(const FfnCounts& counts, std::span<const std::int64_t> positions);
  double nnz_mean() const;       // per token; 0 where none was seen
  double dead_fraction() const;  // of neurons that never fired
};

}  // namespace twell::lm
