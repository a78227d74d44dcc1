// A copy of a weight with rows and columns exchanged.
#pragma once

#include "twell/weight.h"

#pragma GCC visibility push(default)
namespace twell {

class Context;

// in, rows [rows, cols] of any type, to rows [cols, rows] at `out`, which lie `row_stride` >= rows
// numbers apart; in memory apart from in's. Returns them: scales of rows are then scales of
// columns. `context`: as pack_weight() (twell/packed.h) takes it. Throws Error naming the argument.
WeightView transpose(const WeightView& in, void* out, std::int64_t row_stride,
                     const Context* context = nullptr);

}  // namespace twell
#pragma GCC visibility pop
