// Learning rate and L1 coefficient by step: pure functions of the recipe.
#pragma once

#include <cstdint>

#include "train/recipe.h"

namespace twell::lm {

// In a shortened run all lengths below are Recipe::scaled().
//
// Of 0-based `step` out of `recipe.steps`: peak * (step + 1) / warmup while step < warmup, then a
// cosine from the peak (at step = warmup) down to peak * min_lr_ratio (at the last step).
double learning_rate(const Recipe& recipe, std::int64_t step);

// 0 while step < l1_start, then l1 * (step - l1_start + 1) / l1_warmup up to l1, then l1. With
// l1_stages what those say.
double l1_coefficient(const Recipe& recipe, std::int64_t step);

}  // namespace twell::lm
