#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace twell::lm {

double learning_rate(const Recipe& recipe, std::int64_t step) {
  const auto at = static_cast<double>(step);
  const auto warmup = static_cast<double>(recipe.warmup_steps);
  if (step < recipe.warmup_steps) return recipe.peak_lr * (at + 1) / warmup;
  const double length = static_cast<double>(recipe.steps) - 1 - warmup;
  const double part = length > 0 ? std::clamp((at - warmup) / length, 0.0, 1.0) : 0.0;
  const double floor = recipe.peak_lr * recipe.min_lr_ratio;
  return floor + (recipe.peak_lr - floor) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

double l1_coefficient(const Recipe& recipe, std::int64_t step) {
  if (step < recipe.l1_start) return 0.0;
  if (recipe.l1_warmup <= 0) return recipe.l1;
  const auto part = static_cast<double>(step - recipe.l1_start + 1);
  return recipe.l1 * std::min(1.0, part / static_cast<double>(recipe.l1_warmup));
}

}  // namespace twell::lm
