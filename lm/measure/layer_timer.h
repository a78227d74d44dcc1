// The two paths that --path auto chooses from, on one synthetic layer, in turns.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "decoder/feed_forward.h"
#include "device/calibration.h"
#include "synth/synthetic.h"
#include "twell/layer.h"

namespace twell::lm {

struct LayerTimes {
  double dense_us = 0, sparse_us = 0;  // medians of one call
};

class LayerTimer {
 public:
  // With a relu.
  explicit LayerTimer(const SyntheticShape& shape, std::uint64_t seed = 1);
  // Runs last `seconds` at least, and there are `repeats` of each side.
  LayerTimes measure(std::int64_t tokens, int repeats, double seconds);
  // Non-zeros / H on batches of so many tokens.
  double density(std::int64_t tokens);
  // What --path auto goes by in such a layer.
  CostModel automatic_cost() const;
  // The form that the sparse layer chose for its gate.
  std::optional<GateForm> gate_form() const { return sparse_->gate_form(); }

 private:
  at::Tensor inputs(std::int64_t tokens) const;  // [batches, tokens, D]

  SyntheticShape shape_;
  std::uint64_t seed_;
  FfnParameters parameters_;
  Layer dense_;
  std::unique_ptr<FeedForward> sparse_;
};

// The layer's weights as the models' rooms take them.
FfnParameters parameters_of(const SyntheticLayer& layer);

}  // namespace twell::lm
