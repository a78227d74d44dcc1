// Rotary position embedding in the half-split layout of Hugging Face models: of the `rotated` first
// dimensions of a head, mostly all, i is paired with i + rotated / 2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"

namespace twell::lm {

// Radians per position of each of the rotated / 2 pairs, with their scaling applied; negative
// where they are reversed.
std::vector<float> rope_frequencies(const io::ModelConfig& config);

// Of the angles of N rows: position × frequency; yarn's attention factor is part of both. Angles
// are fp32 products, as in the implementations models are trained with: at position p they are off
// by up to p × 2^-24 rad, and exact ones would differ from what the weights saw.
struct Rotation {
  at::Tensor cos, sin;  // fp32 [N, 1, rotated / 2], on the model's device; undefined: no rotation
  std::int64_t head_dim = 0;
};

class RopeTable {
 public:
  explicit RopeTable(const io::ModelConfig& config, at::Device device = at::kCPU)
      : frequencies_(rope_frequencies(config)),
        factor_(static_cast<float>(config.block.positions.scaling.attention_factor)),
        head_dim_(config.head_dim),
        device_(device) {}

  // Of rows at `positions`, int64 [N] on any device, all below `end`. The table grows with use, by
  // doubling: the maximum in config.json may be 131,072 (64 MB of table) for a prompt of ten
  // tokens.
  Rotation rotation(const at::Tensor& positions, std::int64_t end);

 private:
  void grow(std::int64_t rows);

  std::vector<float> frequencies_;  // none: no rotary embedding
  float factor_;                    // of what is rotated
  std::int64_t head_dim_;
  at::Device device_;
  at::Tensor cos_, sin_;  // [positions or more, rotated / 2]
};

// x [N, heads * head_dim], each row by its own rotation; rounded once from fp32. Differentiable
// where grad mode is on; overwrites a contiguous x on the CPU where it is off.
at::Tensor rotate(const at::Tensor& x, const Rotation& rotation);

}  // namespace twell::lm
