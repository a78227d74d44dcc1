#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace twell::lm {
namespace {

// Of a change that takes `steps` steps from the 0-based step `begin` on: what the step has of it.
double part_done(std::int64_t step, std::int64_t begin, std::int64_t steps) {
  if (step < begin) return 0.0;
  if (steps <= 0) return 1.0;
  return std::min(1.0, static_cast<double>(step - begin + 1) / static_cast<double>(steps));
}

}  // namespace

double learning_rate(const Recipe& recipe, std::int64_t step) {
  const auto at = static_cast<double>(step);
  const std::int64_t rising = recipe.scaled(recipe.warmup_steps);
  const auto warmup = static_cast<double>(rising);
  if (step < rising) return recipe.peak_lr * (at + 1) / warmup;
  const double length = static_cast<double>(recipe.length()) - 1 - warmup;
  const double part = length > 0 ? std::clamp((at - warmup) / length, 0.0, 1.0) : 0.0;
  const double floor = recipe.peak_lr * recipe.min_lr_ratio;
  return floor + (recipe.peak_lr - floor) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

double l1_coefficient(const Recipe& recipe, std::int64_t step) {
  const std::vector<L1Stage>& stages = recipe.l1_stages;
  if (stages.empty()) {
    const std::int64_t start = recipe.scaled(recipe.l1_start);
    return recipe.l1 * part_done(step, start, recipe.scaled(recipe.l1_warmup));
  }
  const auto next = std::ranges::find_if(
      stages, [&](const L1Stage& stage) { return recipe.scaled(stage.step) > step; });
  if (next == stages.begin()) return stages.front().coefficient;
  if (next == stages.end()) return stages.back().coefficient;
  const L1Stage& last = *(next - 1);
  const std::int64_t begin = recipe.scaled(last.step);
  return last.coefficient + (next->coefficient - last.coefficient) *
                                part_done(step, begin, recipe.scaled(next->step) - begin);
}

}  // namespace twell::lm
