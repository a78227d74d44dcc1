// What calls count, before they have counted anything.
#pragma once

#include "twell/ffn.h"

namespace twell {

inline FfnCounts zero_counts(std::int64_t rows, std::int64_t neurons) {
  FfnCounts out;
  out.row_nnz.resize(static_cast<std::size_t>(rows));
  out.neuron_nnz.resize(static_cast<std::size_t>(neurons));
  return out;
}

}  // namespace twell
