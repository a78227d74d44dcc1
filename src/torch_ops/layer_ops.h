// A layer that is prepared once (twell/layer.h), as PyTorch holds it: the bytes of its block in one
// tensor, and the number of what the process keeps to run it, which is only ever a matter of time.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "torch_ops/form_arguments.h"

namespace twell::torch_ops {

// `weights` and `form` are as ffn takes them (form_arguments.h), but that matrices are as a
// checkpoint has them: numbers, or what join_codes makes of codes, with scales of rows; and down is
// [columns, H]. `dtype` is that of x.

// What inputs [..., D] show of a layer: their mean, f32 [D]; how many fired each neuron, i64 [H];
// and their number and the share of candidates, f64 [2]: -1 where no screen was tried.
std::tuple<Tensor, Tensor, Tensor> examine_layer(const Tensor& x, const OptionalTensors& weights,
                                                 const std::string& form);

// The block, u8 [bytes], of which make_block's weights are copies. `findings`: the three that
// examine_layer returned; or none.
Tensor make_block(const OptionalTensors& weights, const std::string& form, ScalarType dtype,
                  const std::vector<Tensor>& findings);
// The inverse, vectors in f32. What the layer has not is of no elements.
std::vector<Tensor> unpack_block(const Tensor& block);
std::string form_of_block(const Tensor& block);
bool has_screen(const Tensor& block);

// Keeps a Layer of the block, which decides how calls run: i64 [1], its number. `path` is auto,
// sparse or dense; `cost`, none, or what twell calibrate measured of this machine: tokens [T],
// densities [R], dense [T] and sparse [T, R], f64; or four empty ones, for the built-in figures as
// they are. The block stays alive until close_layer.
Tensor open_layer(const Tensor& block, const std::string& path, const std::vector<Tensor>& cost);
void close_layer(const Tensor& layer);

// y [..., columns] for x [..., D]. `layer` only saves time: without it, and where it is not this
// memory's, the call is sparse.
Tensor run_layer(const Tensor& x, const Tensor& block, const Tensor& layer, std::int64_t columns);
// How a call of so many rows would run, in words.
std::string describe_layer(const Tensor& block, const Tensor& layer, std::int64_t rows);

}  // namespace twell::torch_ops
