#include <algorithm>
#include <numeric>

#include "twell/ffn.h"

namespace twell {

std::int64_t FfnCounts::nnz() const {
  return std::accumulate(row_nnz.begin(), row_nnz.end(), std::int64_t{0});
}

std::int64_t FfnCounts::max_row_nnz() const {
  return row_nnz.empty() ? 0 : *std::max_element(row_nnz.begin(), row_nnz.end());
}

std::int64_t FfnCounts::active_neurons() const {
  return std::count_if(neuron_nnz.begin(), neuron_nnz.end(), [](std::int64_t n) { return n > 0; });
}

}  // namespace twell
