// Rotary position embedding in the half-split layout of Hugging Face models: dimension i of a head
// is paired with i + head_dim / 2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "io/config.h"

namespace twell::lm {

// Radians per position of each of the head_dim / 2 pairs, with linear or llama3 scaling applied.
std::vector<float> rope_frequencies(const io::ModelConfig& config);

// cos and sin of position × frequency. Angles are fp32 products, as in the implementations models
// are trained with: at position p they are off by up to p × 2^-24 rad, and exact ones would differ
// from what the weights saw.
class RopeTable {
 public:
  explicit RopeTable(const io::ModelConfig& config, at::Device device = at::kCPU)
      : frequencies_(rope_frequencies(config)), device_(device) {}

  // Makes rows for positions below `positions`. Grows with use, by doubling: the maximum in
  // config.json may be 131,072 (64 MB of table) for a prompt of ten tokens.
  void reserve(std::int64_t positions);
  const at::Tensor& cos() const { return cos_; }  // [positions or more, head_dim / 2] fp32
  const at::Tensor& sin() const { return sin_; }
  std::int64_t half() const { return static_cast<std::int64_t>(frequencies_.size()); }

 private:
  std::vector<float> frequencies_;
  at::Device device_;
  at::Tensor cos_, sin_;
};

// x [B, S, heads, head_dim] at positions 0 … S-1; differentiable. Rounded once from fp32.
at::Tensor rotate(const at::Tensor& x, const RopeTable& table);
// x [N, heads, head_dim] with cos and sin [N, 1, head_dim / 2] of each row's position, wherever
// they are; as rotate().
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);
// x [N, heads * head_dim] contiguous and on the CPU, row n at positions[n], which the table must
// reach.
void rotate_rows(at::Tensor& x, std::span<const std::int64_t> positions, const RopeTable& table);

}  // namespace twell::lm
