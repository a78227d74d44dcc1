// The built-in cost of another machine, scaled by timing a few calls of one layer on this one.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "twell/cost.h"

namespace twell {

struct LayerTiming {
  std::int64_t tokens = 0;  // of a call
  double dense_us = 0, sparse_us = 0;
  double density = 0;  // of the layer that was timed
};

// Microseconds of one call of each side, the least of up to five runs of a millisecond or more, in
// turns: what else the machine does meets both alike and only ever adds time. Calls have running
// numbers, so that inputs can rotate. Two runs at least, the others within 50 ms in all. Runs that
// lose cores to other processes do not count; infinity where none is left, as on a busy machine.
LayerTiming time_in_turns(std::int64_t tokens, const std::function<void(std::int64_t)>& dense,
                          const std::function<void(std::int64_t)>& sparse);

// Each figure of `built_in`, for layers of this shape, times the factor by which its path was
// slower (or faster) at these tokens. `timings` are of the first of built_in.tokens, in order; the
// last one's factors also serve the tokens beyond. Unchanged where a timing is absurd: no positive
// number, or a factor beyond 100. Factors of the two paths are at most 10 apart.
CostModel scaled(const CostModel& built_in, const FfnShape& shape,
                 const std::vector<LayerTiming>& timings);

// What timings are shared by.
struct LayerKind {
  FfnShape shape;
  std::array<WeightType, 3> types = {};  // of gate, up and down; without a gate up's is gate's
};

// scaled() of the tier's built-in figures, for calls of so many rows, where `time` times calls of
// so many tokens: of 1, 8 and 64, and of 512 where such calls come (from 182 rows on) or take less
// than about 50 ms. Each is timed once a process for layers of one shape, types and number of
// threads whose densities are within a factor of two; others wait for it. Where `time` gives no
// finite number later calls try again, half a second, 2 s and 8 s after that; where it throws none
// does. What was timed before that goes on serving.
struct ScaledCost {
  CostModel cost;
  bool settled;  // calls of so many rows, or fewer, would change nothing
};
ScaledCost scaled_cost(CpuTier tier, int threads, const LayerKind& layer, double density,
                       std::int64_t rows,
                       const std::function<LayerTiming(std::int64_t tokens)>& time);

}  // namespace twell
