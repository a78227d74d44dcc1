// What the plans share.
#pragma once

#include "twell/cuda.h"

namespace twell::cuda {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Parts of a workspace start at a cache line's border, and more.
constexpr std::int64_t kWorkspaceAlignment = 256;

// Throws on sizes and dtypes that no kernel takes.
void check_problem(const char* operation, const Problem& problem);

}  // namespace twell::cuda
