// Causal grouped-query attention. Projections and rotation are the same wherever a row stands; how
// its query meets keys is said by Rows: packed sequences, with cached keys and values or without,
// or one step of a fixed cache.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "decoder/kv_cache.h"
#include "decoder/linear.h"
#include "decoder/norm.h"
#include "decoder/profile.h"
#include "decoder/rope.h"

namespace twell::lm {

struct Attention {
  Linear q, k, v, o;
  Norm q_norm = {}, k_norm = {};  // of each head, before it is rotated
  Norm inner_norm = {};           // in front of o
  bool rotated = true;            // whether queries and keys are, by their positions
  bool rounds_inputs = false;     // of q, k, v and o (rounded_inputs())
};

// The N rows of a forward pass: where each stands in its sequence, and the keys that it sees.
class Rows {
 public:
  virtual ~Rows() = default;
  // q [N, heads * head_dim], k and v [N, kv_heads * head_dim], q and k rotated -> as q; kv_heads
  // divides heads. With a cache, k and v are written to `layer` of it first.
  virtual at::Tensor mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         std::int64_t layer) const = 0;
  Rotation rotation;
  at::Tensor positions;  // int64 [N]
};

// Sequences or pieces of them, one after the other. With a cache, a row sees all that its slot
// holds before it; without one, differentiable where all are of one length.
class PackedRows final : public Rows {
 public:
  struct Run {
    std::int64_t slot = 0;
    std::int64_t start = 0;  // position of the first token
    std::int64_t count = 0;
    std::int64_t row = 0;  // the first; the constructor sets it
  };
  PackedRows(std::vector<Run> runs, RopeTable& rope, const KvCache* cache = nullptr);
  at::Tensor mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 std::int64_t layer) const override;

  const std::vector<std::int64_t>& position_list() const { return list_; }  // [N]

 private:
  // Runs of one length at one position in consecutive slots: one batched call serves all.
  bool uniform() const;

  std::vector<Run> runs_;
  const KvCache* cache_;
  std::vector<std::int64_t> list_;
};

// One token of every slot of a fixed cache, in order, at the positions `where`, int64 [slots]. What
// depends on them is a tensor on the model's device: no size and no address does.
class StepRows final : public Rows {
 public:
  StepRows(const at::Tensor& where, RopeTable& rope, const KvCache& cache);
  at::Tensor mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 std::int64_t layer) const override;

 private:
  const KvCache& cache_;
  at::Tensor where_;  // int64 [slots, kv_heads, 1, head_dim]: the position, where keys are stored
  at::Tensor mask_;   // [slots, 1, 1, capacity] of the keys' type, added to scores
};

// q [B, heads, n, d], k and v [B, kv_heads, m, d], mask bool [n, m] -> [B, heads, n, d]. The query
// heads that share keys become rows of one query matrix, so that each key is read once.
at::Tensor grouped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask);

// x [N, D] -> [N, D], a new tensor.
at::Tensor attend(const Attention& weights, const at::Tensor& x, const Rows& rows,
                  std::int64_t layer, Profile* profile = nullptr);

}  // namespace twell::lm
