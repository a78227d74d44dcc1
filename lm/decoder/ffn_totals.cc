#include "decoder/ffn_totals.h"

#include <algorithm>

namespace twell::lm {

void FfnTotals::add(const FfnCounts& counts, std::span<const std::int64_t> positions) {
  ++calls;
  rows += counts.rows();
  nnz += counts.nnz();
  nnz_max = std::max(nnz_max, counts.max_row_nnz());
  active += counts.active_neurons();
  l1 += counts.l1;
  neuron_nnz.resize(counts.neuron_nnz.size());
  for (std::size_t n = 0; n < neuron_nnz.size(); ++n) neuron_nnz[n] += counts.neuron_nnz[n];
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto position = static_cast<std::size_t>(positions[i]);
    if (position_rows.size() <= position) {
      position_rows.resize(position + 1);
      position_nnz.resize(position + 1);
    }
    ++position_rows[position];
    position_nnz[position] += counts.row_nnz[i];
  }
}

double FfnTotals::nnz_mean() const {
  return rows == 0 ? 0.0 : static_cast<double>(nnz) / static_cast<double>(rows);
}

double FfnTotals::dead_fraction() const {
  if (neuron_nnz.empty()) return 0.0;
  return static_cast<double>(std::count(neuron_nnz.begin(), neuron_nnz.end(), 0)) /
         static_cast<double>(neuron_nnz.size());
}

}  // namespace twell::lm
