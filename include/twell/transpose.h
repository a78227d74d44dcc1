// A copy of a weight with rows and columns exchanged.
#pragma once

#include "twell/weight.h"

#pragma GCC visibility push(default)
namespace twell {

class Context;

// Writes the transpose of `in`, rows [rows, cols] of any type, to `out`: rows [cols, rows] that are
// `row_stride` >= rows numbers apart, in other memory. Returns them. Scales of rows become scales
// of columns. `context`: as for pack_weight() (twell/packed.h). Throws Error naming the argument.
WeightView transpose(const WeightView& in, void* out, std::int64_t row_stride,
                     const Context* context = nullptr);

}  // namespace twell
#pragma GCC visibility pop
