#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace twell::lm {

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
  const std::int64_t start = recipe.scaled(recipe.l1_start);
  const std::int64_t warmup = recipe.scaled(recipe.l1_warmup);
  if (step < start) return 0.0;
  if (warmup <= 0) return recipe.l1;
  const auto part = static_cast<double>(step - start + 1);
  return recipe.l1 * std::min(1.0, part / static_cast<double>(warmup));
}

double annealed_share(const Recipe& recipe, std::int64_t step) {
  const std::int64_t steps = recipe.scaled(recipe.anneal_steps);
  return steps <= 0 ? 1.0
                    : std::min(1.0, static_cast<double>(step + 1) / static_cast<double>(steps));
}

}  // namespace twell::lm
