#include "models/attention.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <cstring>

#include "models/matmul_attention.h"

namespace twell::lm {
namespace {

// q [B, Hq, n, d], k and v [B, Hkv, start + n, d] -> [B, n, Hq * d].
at::Tensor scaled_dot_product(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              std::int64_t start) {
  const std::int64_t batch = q.size(0);
  const std::int64_t count = q.size(2);
  if (count == 1) {  // one token sees every key
    return grouped_attention(q, k, v, std::nullopt).reshape({batch, 1, -1});
  }
  std::optional<at::Tensor> mask;
  if (start > 0) {
    // The built-in causal mask counts from the first key; here earlier tokens are all visible.
    mask = at::ones({count, start + count}, k.options().dtype(at::kBool)).tril(start);
  }
  at::Tensor out;
  if (mask && !q.is_cpu()) {
    // Of PyTorch's kernels for GPUs that take a mask, only the slow one shares keys among heads.
    out = grouped_attention(q, k, v, mask);
  } else {
    out = at::scaled_dot_product_attention(q, k, v, mask, 0.0, !mask, std::nullopt,
                                           q.size(1) > k.size(1));
  }
  return out.transpose(1, 2).reshape({batch, count, -1});
}

// Rows of x [N, heads * d] to buffer[slot, head, position, :].
void store(const at::Tensor& x, const PackedRows& rows, const at::Tensor& buffer) {
  const std::int64_t heads = buffer.size(1);
  if (!buffer.is_cpu()) {
    for (const auto& run : rows.runs) {
      buffer[run.slot]
          .narrow(1, run.start, run.count)
          .copy_(x.narrow(0, run.row, run.count)
                     .view({run.count, heads, buffer.size(3)})
                     .transpose(0, 1));
    }
    return;
  }
  const auto bytes = static_cast<std::int64_t>(buffer.size(3) * buffer.element_size());
  const auto* from = static_cast<const std::byte*>(x.const_data_ptr());
  auto* to = static_cast<std::byte*>(buffer.mutable_data_ptr());
  for (const auto& run : rows.runs) {
    at::parallel_for(0, run.count, 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t head = 0; head < heads; ++head) {
        std::byte* line = to + ((run.slot * heads + head) * buffer.size(2) + run.start) * bytes;
        for (std::int64_t i = begin; i < end; ++i) {
          std::memcpy(line + i * bytes, from + ((run.row + i) * heads + head) * bytes,
                      static_cast<std::size_t>(bytes));
        }
      }
    });
  }
}

// Keys or values of `runs` consecutive slots: from the cache, or the rows of this very call.
// [runs, kv_heads, at least start + count, d]; of the cache with the room behind them.
at::Tensor source(const at::Tensor& fresh, const at::Tensor& cached, const PackedRows::Run& run,
                  std::int64_t runs, const AttentionShape& shape) {
  if (cached.defined()) return cached.narrow(0, run.slot, runs);
  return fresh.narrow(0, run.row, runs * run.count)
      .view({runs, run.count, shape.kv_heads, shape.head_dim})
      .transpose(1, 2);
}

// x [N, heads · head_dim] -> [N, heads, head_dim], rotated.
at::Tensor rotate_heads(const at::Tensor& x, const AttentionShape& shape, const at::Tensor& cos,
                        const at::Tensor& sin) {
  return rotate(x.view({x.size(0), -1, shape.head_dim}), cos, sin);
}

// Writes keys and values to the cache, and mixes the values for every query. [N, heads * head_dim]
at::Tensor mix(const AttentionShape& shape, const at::Tensor& q, const at::Tensor& k,
               const at::Tensor& v, const PackedRows& rows, const KvCache* cache,
               std::int64_t layer) {
  at::Tensor keys, values;
  if (cache != nullptr) {
    keys = cache->keys(layer);
    values = cache->values(layer);
    store(k, rows, keys);
    store(v, rows, values);
  }
  at::Tensor out = at::empty(q.sizes(), q.options());
  std::vector<AttentionTask> tasks;
  const auto own_rows = [&](const at::Tensor& all, const PackedRows::Run& run) {
    return all.narrow(0, run.row, run.count).view({run.count, shape.heads, shape.head_dim});
  };
  const auto fused = [&](const PackedRows::Run& run, std::int64_t runs) {
    const std::int64_t end = run.start + run.count;
    const at::Tensor queries = q.narrow(0, run.row, runs * run.count)
                                   .view({runs, run.count, shape.heads, shape.head_dim})
                                   .transpose(1, 2);
    out.narrow(0, run.row, runs * run.count)
        .copy_(scaled_dot_product(queries, source(k, keys, run, runs, shape).narrow(2, 0, end),
                                  source(v, values, run, runs, shape).narrow(2, 0, end), run.start)
                   .view({runs * run.count, shape.heads * shape.head_dim}));
  };
  const bool uniform = rows.uniform();
  for (const auto& run : rows.runs) {
    if (q.is_cpu() && matmul_attention_is_faster(q.scalar_type(), run.count)) {
      tasks.push_back({own_rows(q, run), source(k, keys, run, 1, shape)[0],
                       source(v, values, run, 1, shape)[0], own_rows(out, run), run.start});
    } else if (uniform) {
      fused(run, static_cast<std::int64_t>(rows.runs.size()));
      break;
    } else {
      fused(run, 1);
    }
  }
  if (!tasks.empty()) matmul_attention(tasks);
  return out;
}

}  // namespace

at::Tensor grouped_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const std::optional<at::Tensor>& mask) {
  const std::int64_t groups = q.size(1) / k.size(1);
  const at::Tensor rows = q.reshape({q.size(0), k.size(1), groups * q.size(2), q.size(3)});
  std::optional<at::Tensor> mask_of_rows;
  if (mask) mask_of_rows = mask->repeat({groups, 1});
  return at::scaled_dot_product_attention(rows, k, v, mask_of_rows).reshape(q.sizes());
}

void PackedRows::add(std::int64_t slot, std::int64_t start, std::int64_t count) {
  runs.push_back({slot, start, count, static_cast<std::int64_t>(positions.size())});
  for (std::int64_t i = 0; i < count; ++i) positions.push_back(start + i);
}

bool PackedRows::uniform() const {
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].slot != runs[i - 1].slot + 1 || runs[i].start != runs[0].start ||
        runs[i].count != runs[0].count) {
      return false;
    }
  }
  return true;
}

void PackedRows::place(const RopeTable& rope, at::Device device) {
  const at::Tensor where = at::tensor(positions, at::kLong).to(device);
  cos = at::index(rope.cos(), {where}).unsqueeze(1);
  sin = at::index(rope.sin(), {where}).unsqueeze(1);
}

StepRows::StepRows(const at::Tensor& positions, const RopeTable& rope, const KvCache& cache)
    : cos(at::index(rope.cos(), {positions}).unsqueeze(1)),
      sin(at::index(rope.sin(), {positions}).unsqueeze(1)) {
  const at::Tensor keys = cache.keys(0);
  where = positions.view({-1, 1, 1, 1}).expand({-1, keys.size(1), 1, keys.size(3)});
  // The least number of the type, added to a score, leaves a weight of zero.
  const double least = keys.scalar_type() == at::kHalf ? -65504.0 : -0x1.fep127;
  mask = (at::arange(keys.size(2), positions.options()) > positions.unsqueeze(1))
             .to(keys.scalar_type())
             .mul_(least)
             .view({-1, 1, 1, keys.size(2)});
}

at::Tensor attend(const Attention& weights, const at::Tensor& x, const StepRows& rows,
                  const KvCache& cache, std::int64_t layer) {
  const auto& [heads, kv_heads, head_dim] = weights.shape;
  const std::int64_t slots = x.size(0);
  const at::Tensor keys = cache.keys(layer);
  const at::Tensor values = cache.values(layer);
  const at::Tensor q = rotate_heads(weights.q(x), weights.shape, rows.cos, rows.sin);
  const at::Tensor k = rotate_heads(weights.k(x), weights.shape, rows.cos, rows.sin);
  // Not a view of `keys` at a position, which would need it on the host.
  keys.scatter_(2, rows.where, k.unsqueeze(2));
  values.scatter_(2, rows.where, weights.v(x).view({slots, kv_heads, 1, head_dim}));
  // The query heads that share keys are rows of one query matrix.
  const at::Tensor mixed = at::scaled_dot_product_attention(
      q.view({slots, kv_heads, heads / kv_heads, head_dim}), keys, values, rows.mask);
  return weights.o(mixed.reshape({slots, heads * head_dim}));
}

at::Tensor attend(const Attention& weights, const at::Tensor& x, const RopeTable& rope) {
  const auto& [heads, kv_heads, head_dim] = weights.shape;
  const std::int64_t batch = x.size(0);
  const std::int64_t length = x.size(1);
  const at::Tensor q = rotate(weights.q(x).view({batch, length, heads, head_dim}), rope);
  const at::Tensor k = rotate(weights.k(x).view({batch, length, kv_heads, head_dim}), rope);
  const at::Tensor v = weights.v(x).view({batch, length, kv_heads, head_dim});
  return weights.o(scaled_dot_product(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0));
}

at::Tensor attend(const Attention& weights, const at::Tensor& x, const RopeTable& rope,
                  const PackedRows& rows, const KvCache* cache, std::int64_t layer,
                  Profile* profile) {
  at::Tensor q, k, v;
  {
    const PieceTimer timer(profile, Piece::other_linear);
    q = weights.q(x);
    k = weights.k(x);
    v = weights.v(x);
  }
  {
    const PieceTimer timer(profile, Piece::norm_and_rope);
    if (rows.cos.defined()) {
      q = rotate_heads(q, weights.shape, rows.cos, rows.sin).flatten(1);
      k = rotate_heads(k, weights.shape, rows.cos, rows.sin).flatten(1);
    } else {
      rotate_rows(q, rows.positions, rope);
      rotate_rows(k, rows.positions, rope);
    }
  }
  const at::Tensor mixed = timed(profile, Piece::attention,
                                 [&] { return mix(weights.shape, q, k, v, rows, cache, layer); });
  return timed(profile, Piece::other_linear, [&] { return weights.o(mixed); });
}

}  // namespace twell::lm
