// What the plans share.
#pragma once

#include <functional>

#include "twell/cuda.h"

namespace twell::cuda {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// Of tokens, inputs and neurons: 32-bit numbers and their sums have room for so many.
constexpr std::int64_t kMostSize = std::int64_t{1} << 30;
// Neurons that a row's list can name.
constexpr std::int64_t kMostListed = kWidestTile;

// Throws on sizes and dtypes that no kernel takes.
void check_problem(const char* operation, const Problem& problem);

// Share of all neurons that tokens fire among those from `first` on; rates as in choose_hot().
double density_from(const std::vector<double>& rates, std::int64_t first);
// Whether W is streamed for up to plan.block_rows rows.
inline bool streams(const GemmPlan& plan) {
  return plan.stages == 0 && plan.shape != GemmShape::library;
}
// The hot neurons that a plan makes of those of its problem.
std::int64_t hot_of(const Problem& problem);
// The number of hot neurons, a multiple of 64 or all, of which a call takes the fewest seconds.
std::int64_t cheapest_hot(
    const char* operation, const Problem& problem, const std::vector<double>& rates,
    const std::function<double(const Problem&, double density, double cold)>& seconds_of);
// Whether their u comes from the gate's GEMM: where that is possible, and expected to be faster.
bool joins(const Device& device, const Problem& problem, std::int64_t hot);
// Whether the dense gate of all rows waits for up, instead of being packed while it is in L2.
inline bool waits_for_up(const Problem& problem, std::int64_t hot, bool joined) {
  return hot == problem.neurons && problem.gated && !joined;
}
// The gate of a layer with so many hot neurons, whose u is joined to it or not; in `shape`, if
// there is one.
GemmPlan plan_gate(const Device& device, const Problem& problem, std::int64_t hot, bool joined,
                   std::optional<GemmShape> shape = {});
// The gate by way of its screen, for at most ScreenTiles::kTokens rows. Throws where it is not
// built for the problem, the device has no room for it, or the problem has none.
GemmPlan plan_screen_gemm(const Device& device, const Problem& problem, std::int32_t tile);
// Whether it can be, and is expected to be faster than a streamed W.
bool screen_pays(const Device& device, const Problem& problem, std::int32_t tile);
// The gate by a library's GEMM, with the rows of up of so many neurons joined to it: rows of a
// block and what the dense block takes.
GemmPlan plan_library_gemm(const Device& device, const Problem& problem, std::int32_t tile,
                           std::int64_t joined = 0);
// Rows of the whole layer that are finished before the next are begun, if the workspace has room:
// with hot neurons, so many that their sums stay in L2.
std::int64_t rows_at_a_time(const Device& device, const Problem& problem, std::int64_t hot);
// Whether a GEMM's output [rows, cols] stays in a share of L2: its operands need some too. Sums may
// take more, since each gather reads the cold rows of Wu and Wd from memory again: on an H100 4,096
// rows, 34 MB, take 0.89 of the time that 2,048 take; 8,192 take longer.
inline constexpr double kOutputShare = 0.4;
inline constexpr double kSumsShare = 0.8;
bool stays_in_l2(const Device& device, std::int64_t rows, std::int64_t cols,
                 std::int64_t value_bytes, double share);
// What a GEMM of `tokens` rows takes in blocks of `rows`, whose last tiles leave SMs idle: 1 where
// they leave none.
double loss_of_blocks(const Device& device, std::int64_t tokens, std::int64_t rows,
                      std::int64_t cols);
// Places whose gradients the backward pass holds at a time, unless it is told.
std::int64_t turn_places(const Device& device);
// For rows of lists that pack_gate made.
GatherPlan plan_gather_rows(const Device& device, const Problem& problem);

// Expected seconds of the gate, packed: by a tile shape whose tensor cores reach `rate` of what
// mma.sync can; by the library, whose rows may be a part of the call's.
struct TileShape {
  int rows, cols;
  double rate;
};
double tile_gate_seconds(const Device& device, const Problem& problem, const TileShape& shape);
double library_gate_seconds(const Device& device, const Problem& problem, const GemmPlan& plan,
                            bool part = false);
// With W, or its screen, streamed for few rows.
double stream_gate_seconds(const Device& device, const Problem& problem);
double screen_gate_seconds(const Device& device, const Problem& problem);
// As planned.
double gate_seconds(const Device& device, const Problem& problem, const GemmPlan& plan,
                    bool part = false);

}  // namespace twell::cuda
