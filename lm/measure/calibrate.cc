#include "measure/calibrate.h"

#include <fmt/core.h>

#include <algorithm>

#include "measure/layer_timer.h"
#include "twell/tuning.h"

namespace twell::lm {

std::int64_t calibration_steps() {
  return std::ssize(FfnCostTable::kTokens) * std::ssize(FfnCostTable::kDensities);
}

CostModel calibrate(const FfnShape& shape, const MeasureOptions& options,
                    const std::function<void(const std::string&)>& tick) {
  CostModel cost;
  cost.tokens.assign(FfnCostTable::kTokens.begin(), FfnCostTable::kTokens.end());
  cost.sparse.resize(cost.tokens.size());
  const auto per_weight = [&](double us) {
    return us * 1e3 / static_cast<double>(shape.width * shape.neurons);
  };
  // The dense path does the same work at every density, and noise only ever adds time. At 8 tokens,
  // where weights come from what is left of L3, runs differ by 1.4.
  cost.dense.assign(cost.tokens.size(), 1e9);
  for (const double density : FfnCostTable::kDensities) {
    SyntheticShape synthetic;
    synthetic.width = shape.width;
    synthetic.neurons = shape.neurons;
    synthetic.activity.mean_nnz = density * static_cast<double>(shape.neurons);
    LayerTimer timer(synthetic);
    cost.densities.push_back(timer.density(cost.tokens.back()));
    for (std::size_t t = 0; t < cost.tokens.size(); ++t) {
      const LayerTimes times = timer.measure(cost.tokens[t], options.repeats, options.min_seconds);
      cost.dense[t] = std::min(cost.dense[t], per_weight(times.dense_us));
      cost.sparse[t].push_back(per_weight(times.sparse_us));
      tick(fmt::format("{} tokens, {:.1f} %", cost.tokens[t], 100 * density));
    }
  }
  // More non-zeros are never less work: of two that say otherwise the lower one is right.
  for (auto& row : cost.sparse) {
    for (std::size_t i = row.size() - 1; i-- > 0;) row[i] = std::min(row[i], row[i + 1]);
  }
  return cost;
}

}  // namespace twell::lm
