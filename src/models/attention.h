// Causal grouped-query attention, over whole sequences (differentiable) or packed chunks of them
// with cached keys and values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/kv_cache.h"
#include "models/linear.h"
#include "models/profile.h"
#include "models/rope.h"

namespace twell::lm {

struct AttentionShape {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // divides heads
  std::int64_t head_dim = 0;
};

struct Attention {
  Linear q, k, v, o;
  AttentionShape shape;
};

// Which rows of a packed [N, D] matrix belong to which sequence.
struct PackedRows {
  struct Run {
    std::int64_t slot = 0;
    std::int64_t start = 0;  // position of the first token
    std::int64_t count = 0;
    std::int64_t row = 0;
  };
  std::vector<Run> runs;
  std::vector<std::int64_t> positions;  // [N]
  // Of the positions, [N, 1, head_dim / 2], on the model's device; only where that is not the CPU.
  at::Tensor cos = {}, sin = {};

  void add(std::int64_t slot, std::int64_t start, std::int64_t count);
  // Runs of one length at one position in consecutive slots: one batched call serves all.
  bool uniform() const;
  // Sets cos and sin. The table must reach all positions.
  void place(const RopeTable& rope, at::Device device);
};

// One token of every slot of a fixed cache, in order. Everything that depends on positions is a
// tensor on the model's device: no size and no address does.
struct StepRows {
  StepRows(const at::Tensor& positions, const RopeTable& rope, const KvCache& cache);
  at::Tensor cos, sin;  // [slots, 1, head_dim / 2]
  at::Tensor where;     // int64 [slots, kv_heads, 1, head_dim]: the position, where keys are stored
  at::Tensor mask;      // [slots, 1, 1, capacity] of the keys' type, added to scores
};

// q [B, heads, n, d], k and v [B, kv_heads, m, d], mask bool [n, m] -> [B, heads, n, d]. The query
// heads that share keys become rows of one query matrix, so that each key is read once.
at::Tensor grouped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask);

// x [B, S, D] at positions 0 … S-1 -> [B, S, D]; differentiable.
at::Tensor attend(const Attention& weights, const at::Tensor& x, const RopeTable& rope);
// x [N, D] -> [N, D]; no gradients. With a cache, writes keys and values of `layer` at the runs'
// positions first, and attends to all positions up to each row's own.
at::Tensor attend(const Attention& weights, const at::Tensor& x, const RopeTable& rope,
                  const PackedRows& rows, const KvCache* cache, std::int64_t layer,
                  Profile* profile = nullptr);

// x [slots, D] -> [slots, D]; no gradients.
at::Tensor attend(const Attention& weights, const at::Tensor& x, const StepRows& rows,
                  const KvCache& cache, std::int64_t layer);

}  // namespace twell::lm
