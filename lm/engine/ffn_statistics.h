// How sparse a model is on a text: non-zeros by layer and position, neurons that never fire.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decoder/ffn_totals.h"
#include "decoder/model.h"
#include "engine/score.h"

namespace twell::lm {

// Accumulates over any number of forward passes. On the dense path the activation need not be a
// sparse one: SiLU shows its (rare) exact zeros as they are.
class FfnStatistics final : public FfnObserver {
 public:
  bool wants_counts() const override { return true; }
  void begin(std::span<const std::int64_t> positions) override;
  void observe(const FfnActivity& activity) override;

  const std::vector<FfnTotals>& layers() const { return layers_; }
  double nnz_mean() const;  // over tokens and layers

 private:
  std::vector<std::int64_t> positions_;
  std::vector<FfnTotals> layers_;
};

// The model's context, at most 2048.
std::int64_t default_window(const Model& model);
// Runs a token stream in sequences of `window` tokens (0: default_window()). `options.observer`, if
// given, is told as well.
FfnStatistics measure_ffn(Model& model, std::span<const std::int64_t> stream,
                          std::int64_t window = 0, const ScoreOptions& options = {});

}  // namespace twell::lm
