// Learning rate, L1 coefficient and what else changes by step: pure functions of the recipe.
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

// How much of the new activation layers compute in the 0-based `step`; 1: nothing else.
double annealed_share(const Recipe& recipe, std::int64_t step);

// How far the share of neurons that fire has come on its way to recipe.share: 0 until the
// activation is annealed, then linear in steps_to_share() steps; 1: it is there.
double share_progress(const Recipe& recipe, std::int64_t step);

}  // namespace twell::lm
