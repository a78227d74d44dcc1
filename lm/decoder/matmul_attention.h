// Causal attention of many queries as two batched matrix products and a softmax, for machines and
// types where that is faster than PyTorch's fused operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace twell::lm {

// One sequence: `n` queries at positions start … start + n - 1.
struct AttentionTask {
  at::Tensor q;    // [n, heads, d], rows contiguous
  at::Tensor k;    // [kv_heads, keys, d], any strides; keys >= start + n
  at::Tensor v;    // as k
  at::Tensor out;  // [n, heads, d], written
  std::int64_t start = 0;
};

// softmax(q kᵀ / √d) v, each query against the keys up to its own position. All tasks are of
// one type and have as many heads of either kind.
// Products and the softmax accumulate in f32; scores and probabilities are rounded to the type in
// between, as eager attention of `transformers` does. No gradients.
void matmul_attention(std::span<const AttentionTask> tasks);

// Whether matmul_attention() is expected to be faster than at::scaled_dot_product_attention. The
// processor's features are read once.
bool matmul_attention_is_faster(at::ScalarType dtype);

}  // namespace twell::lm
