// A model layer by layer: how much faster each sparse feed-forward layer is, on the inputs that it
// really gets, and how that goes with its activity (the paper's figure of speedup by layer).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "measure/model_compare.h"

namespace twell::lm {

struct LayerSpeed {
  double nnz_mean = 0;
  Timing dense, sparse;  // dense: of the fastest variant
  double speedup() const { return dense.median_us / sparse.median_us; }
};

// All sides but eager, on the options' prompts, with the inputs of the first dense side. `nnz`: of
// each layer, mean a token. `tick` is called once a layer.
std::vector<LayerSpeed> compare_layers(const Sides& sides, std::span<const std::int64_t> tokens,
                                       std::span<const double> nnz, const CompareOptions& options,
                                       const std::function<void()>& tick);

// Pearson's, of non-zeros and speedup; none where there are fewer than three layers or where
// either does not vary.
std::optional<double> correlation(std::span<const LayerSpeed> layers);

nlohmann::json to_json(std::span<const LayerSpeed> layers);

}  // namespace twell::lm
