// The dense variant that a layer has of itself.
#pragma once

#include "twell/layer.h"

namespace twell {

// Whether it has one. Layers of codes have none: their products would be those of numbers of twice
// their size or more. Nor do those where a row of up or down is not finite: ffn() lets it reach
// only what fires it, and a dense product would not. Reads up and down once.
bool has_own_dense(const Context& context, const LayerBlock& block);

// By packed copies of up and down, and of the gate where it is not packed already: as many bytes as
// these weights have.
DenseFfn make_own_dense(Context& context, const LayerBlock& block);
std::int64_t own_dense_bytes(const LayerBlock& block);  // of these copies

}  // namespace twell
