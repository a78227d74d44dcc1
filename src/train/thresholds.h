// FATReLU's thresholds, raised while a model is trained until the recipe's share of its neurons
// fires. Python has the same: python/twell/hf/thresholds.py.
//
// Each layer has a threshold of its own. The share that fires falls in a straight line
// (share_progress()) from what fires in the first step of the path to Recipe::share, a mean over
// layers. Each layer falls in proportion to what it fires. Every kFitEvery steps of the path, and
// at its end, a layer's threshold becomes the quantile of what its first projection yields for up
// to 512 tokens of the step's first pass. Later, thresholds stay.
//
// A config.json has one threshold. In files all layers therefore have the largest one's: where
// v > t, c·v > c·t. So the first projection is multiplied by c = largest / t, and what it meets is
// divided by it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "decoder/model.h"
#include "train/layer_form.h"
#include "train/processes.h"
#include "train/recipe.h"

namespace twell::lm {

// By layer. Part of a checkpoint.
struct ThresholdState {
  std::vector<float> thresholds;
  std::vector<double> first_shares;  // that fired in the first step of the path; empty before it
  bool settled = false;              // the path has come to its end

  // Whether a model of so many layers can have it.
  bool fits(std::int64_t layers) const;
};

class Thresholds {
 public:
  // Steps from one fitting to the next.
  static constexpr std::int64_t kFitEvery = 8;

  // All layers have the one that `model` has. Throws Error (invalid_argument) where its activation
  // is no FATReLU, and for layers without a gate but with a norm of their hidden state, whose
  // epsilon would count for another size.
  explicit Thresholds(const Model& model);

  float of(std::int64_t layer) const { return state_.thresholds[at(layer)]; }

  // Before a step: whether its passes are to show what layers yield.
  void begin_step(const Recipe& recipe, std::int64_t step);
  // x [N, D]: what a layer is given in a pass. The first pass of a step counts.
  void see(std::int64_t layer, const at::Tensor& x, const Projections& p);
  // After the passes. The thresholds of the first process are those of all.
  void fit(const Recipe& recipe, std::int64_t step, const Processes& processes);
  // In place of fit(), where a step has failed.
  void forget() { seen_.clear(); }

  const ThresholdState& state() const { return state_; }
  void restore(ThresholdState state) { state_ = std::move(state); }

 private:
  static std::size_t at(std::int64_t layer) { return static_cast<std::size_t>(layer); }

  ThresholdState state_;
  bool looks_ = false;                       // in this step
  std::map<std::int64_t, at::Tensor> seen_;  // f32, on the CPU
};

// The least threshold from 0 on above which no more than this share of the values is, or one value.
// f32, on the CPU.
float threshold_of(const at::Tensor& values, double share);

// What files have in place of thresholds of layers.
struct FoldedThresholds {
  float threshold = 0.0F;
  std::map<std::string, double> factors;  // of parameters
};
FoldedThresholds fold(const Model& model, const std::vector<float>& thresholds);

}  // namespace twell::lm
