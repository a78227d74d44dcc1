// What the plans share.
#pragma once

#include "twell/cuda.h"

namespace twell::cuda {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Neurons that a row's list can name.
constexpr std::int64_t kMostListed = 65536;

// Throws on sizes and dtypes that no kernel takes.
void check_problem(const char* operation, const Problem& problem);

// Whether W is streamed for up to plan.block_rows rows.
inline bool streams(const GemmPlan& plan) {
  return plan.stages == 0 && plan.shape != GemmShape::library;
}
// The hot neurons that a plan makes of those of its problem.
std::int64_t hot_of(const Problem& problem);
// The gate of a layer with so many hot neurons; in `shape`, if there is one.
GemmPlan plan_gate(const Device& device, const Problem& problem, std::int64_t hot,
                   std::optional<GemmShape> shape = {});
// The gate by way of its screen, for at most ScreenTiles::kTokens rows. Throws where it is not
// built for the problem, or the problem has none.
GemmPlan plan_screen_gemm(const Problem& problem, std::int32_t tile);
// Whether it can be, and is expected to be faster than a streamed W.
bool screen_pays(const Device& device, const Problem& problem, std::int32_t tile);
// The gate by a library's GEMM: rows of a block and what the dense block takes.
GemmPlan plan_library_gemm(const Device& device, const Problem& problem, std::int32_t tile);
// For rows of lists that pack_gate made.
GatherPlan plan_gather_rows(const Device& device, const Problem& problem);

// Expected seconds of the gate, packed: by a tile shape whose tensor cores reach `rate` of what
// mma.sync can; by the library.
struct TileShape {
  int rows, cols;
  double rate;
};
double tile_gate_seconds(const Device& device, const Problem& problem, const TileShape& shape);
double library_gate_seconds(const Device& device, const Problem& problem);
// With W, or its screen, streamed for few rows.
double stream_gate_seconds(const Device& device, const Problem& problem);
double screen_gate_seconds(const Device& device, const Problem& problem);

}  // namespace twell::cuda
