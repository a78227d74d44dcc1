// What a GPU's plans say before a call: from figures of the GPU, without work on it.
#pragma once

#include <cstdint>
#include <string>

#include "torch_ops/arguments.h"

namespace twell::torch_ops {

// How many of the first neurons to make hot on GPU `device`, in a call of `tokens` rows of `width`:
// none, a multiple of 64, or all. rates: on the CPU, f64 or f32 [H], the share of tokens that fire
// each neuron, the highest first. `joined`: up lies right behind gate. `training`: both passes.
std::int64_t choose_hot(const Tensor& rates, std::int64_t tokens, std::int64_t width,
                        std::int64_t device, const std::string& activation, bool gated, bool joined,
                        bool training);

// As choose_hot in training, where the sparse passes are expected to be faster than PyTorch's dense
// ones, even if the rows of all weights change places in each pass and back; else -1.
std::int64_t choose_training(const Tensor& rates, std::int64_t tokens, std::int64_t width,
                             std::int64_t device, const std::string& activation, bool gated);

// Whether a call of `tokens` rows is expected to be faster with the gate's screen than with the
// gate, where the screen leaves the share `candidates` of its neurons to a token.
bool screen_pays(std::int64_t tokens, std::int64_t width, std::int64_t neurons, double candidates,
                 std::int64_t device);

}  // namespace twell::torch_ops
