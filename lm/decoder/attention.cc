#include "decoder/attention.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "decoder/matmul_attention.h"
#include "twell/attention.h"

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
void store(const at::Tensor& x, std::span<const PackedRows::Run> runs, const at::Tensor& buffer) {
  const std::int64_t heads = buffer.size(1);
  if (!buffer.is_cpu()) {
    for (const auto& run : runs) {
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
  for (const auto& run : runs) {
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

// Tasks of one query each, by libtwell: keys and values stream by once, at the bandwidth of memory,
// and are not copied. The operators of a batched product took three times as long.
void attend_singles(std::span<const AttentionTask> tasks) {
  if (tasks.empty()) return;
  std::vector<DecodeQuery> queries;
  for (const AttentionTask& task : tasks) {
    const DType dtype = task.q.scalar_type() == at::kFloat ? DType::f32 : DType::bf16;
    const std::int64_t heads = task.q.size(1);
    const std::int64_t width = task.q.size(2);
    const auto first_head = [&](const at::Tensor& rows) -> ConstMatrixView {
      TORCH_INTERNAL_ASSERT(rows.stride(2) == 1);
      return {rows.const_data_ptr(), dtype, task.start + 1, width, rows.stride(1)};
    };
    queries.push_back({{task.q.const_data_ptr(), dtype, heads, width},
                       first_head(task.k),
                       first_head(task.v),
                       task.k.stride(0),
                       task.v.stride(0),
                       {task.out.mutable_data_ptr(), dtype, heads, width}});
  }
  Context context({.threads = at::get_num_threads(), .tier = {}});
  decode_attention(context, {tasks[0].q.size(1), tasks[0].k.size(0)}, queries);
}

// Each head of x [N, heads * width] by itself.
at::Tensor norm_heads(const Norm& norm, const at::Tensor& x, std::int64_t width) {
  if (norm.spec.kind == io::NormSpec::Kind::none) return x;
  return norm(x.view({x.size(0), x.size(1) / width, width})).view(x.sizes());
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

PackedRows::PackedRows(std::vector<Run> runs, RopeTable& rope, const KvCache* cache)
    : runs_(std::move(runs)), cache_(cache) {
  std::int64_t end = 0;
  for (Run& run : runs_) {
    run.row = std::ssize(list_);
    end = std::max(end, run.start + run.count);
    for (std::int64_t i = 0; i < run.count; ++i) list_.push_back(run.start + i);
  }
  positions = at::tensor(list_, at::kLong);
  rotation = rope.rotation(positions, end);
}

bool PackedRows::uniform() const {
  for (std::size_t i = 1; i < runs_.size(); ++i) {
    if (runs_[i].slot != runs_[i - 1].slot + 1 || runs_[i].start != runs_[0].start ||
        runs_[i].count != runs_[0].count) {
      return false;
    }
  }
  return true;
}

at::Tensor PackedRows::mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           std::int64_t layer) const {
  const std::int64_t head_dim = rotation.head_dim;
  at::Tensor keys, values;
  if (cache_ != nullptr) {
    keys = cache_->keys(layer);
    values = cache_->values(layer);
    store(k, runs_, keys);
    store(v, runs_, values);
  }
  // Rows of `some` consecutive runs of one length: [some, count, heads, head_dim].
  const auto own = [&](const at::Tensor& rows, const Run& run, std::int64_t some) {
    return rows.narrow(0, run.row, some * run.count).view({some, run.count, -1, head_dim});
  };
  // Their keys or values, from the cache with the room behind them, or the rows of this very call:
  // [some, kv_heads, at least start + count, head_dim].
  const auto seen = [&](const at::Tensor& fresh, const at::Tensor& cached, const Run& run,
                        std::int64_t some) {
    return cached.defined() ? cached.narrow(0, run.slot, some)
                            : own(fresh, run, some).transpose(1, 2);
  };
  const auto fused = [&](const Run& run, std::int64_t some) {
    const std::int64_t end = run.start + run.count;
    return scaled_dot_product(own(q, run, some).transpose(1, 2),
                              seen(k, keys, run, some).narrow(2, 0, end),
                              seen(v, values, run, some).narrow(2, 0, end), run.start);
  };
  const bool inference = q.is_cpu() && !at::GradMode::is_enabled();
  const at::ScalarType dtype = q.scalar_type();
  const bool singles = inference && (dtype == at::kBFloat16 || dtype == at::kFloat);
  const bool by_products = inference && matmul_attention_is_faster(dtype);
  if (uniform() && !by_products && !(singles && runs_[0].count == 1)) {
    return fused(runs_[0], std::ssize(runs_)).view(q.sizes());
  }
  at::Tensor out = at::empty(q.sizes(), q.options());
  std::vector<AttentionTask> single, several;
  for (const Run& run : runs_) {
    const bool one = singles && run.count == 1;
    if (one || by_products) {
      (one ? single : several)
          .push_back({own(q, run, 1)[0], seen(k, keys, run, 1)[0], seen(v, values, run, 1)[0],
                      own(out, run, 1)[0], run.start});
    } else {
      out.narrow(0, run.row, run.count).copy_(fused(run, 1)[0]);
    }
  }
  attend_singles(single);
  matmul_attention(several);
  return out;
}

StepRows::StepRows(const at::Tensor& where, RopeTable& rope, const KvCache& cache) : cache_(cache) {
  positions = where;
  rotation = rope.rotation(positions, cache.capacity());
  const at::Tensor keys = cache.keys(0);
  where_ = positions.view({-1, 1, 1, 1}).expand({-1, keys.size(1), 1, keys.size(3)});
  // The least number of the type, added to a score, leaves a weight of zero.
  const double least = keys.scalar_type() == at::kHalf ? -65504.0 : -0x1.fep127;
  mask_ = (at::arange(keys.size(2), positions.options()) > positions.unsqueeze(1))
              .to(keys.scalar_type())
              .mul_(least)
              .view({-1, 1, 1, keys.size(2)});
}

at::Tensor StepRows::mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         std::int64_t layer) const {
  const at::Tensor keys = cache_.keys(layer);
  const at::Tensor values = cache_.values(layer);
  const auto heads = [&](const at::Tensor& x) {  // [slots, kv_heads, rows, head_dim]
    return x.view({keys.size(0), keys.size(1), -1, keys.size(3)});
  };
  // Not a view of `keys` at a position, which would need it on the host.
  keys.scatter_(2, where_, heads(k));
  values.scatter_(2, where_, heads(v));
  // The query heads that share keys are rows of one query matrix.
  return at::scaled_dot_product_attention(heads(q), keys, values, mask_).reshape(q.sizes());
}

at::Tensor attend(const Attention& weights, const at::Tensor& x, const Rows& rows,
                  std::int64_t layer, Profile* profile) {
  const auto input = [&](const at::Tensor& in) {
    return weights.rounds_inputs ? rounded_inputs(in) : in;
  };
  at::Tensor q, k, v;
  {
    const PieceTimer timer(profile, Piece::other_linear);
    const at::Tensor in = input(x);
    q = weights.q(in);
    k = weights.k(in);
    v = weights.v(in);
  }
  {
    const PieceTimer timer(profile, Piece::norm_and_rope);
    const std::int64_t width = rows.rotation.head_dim;
    q = norm_heads(weights.q_norm, q, width);
    k = norm_heads(weights.k_norm, k, width);
    if (weights.rotated) {
      q = rotate(q, rows.rotation);
      k = rotate(k, rows.rotation);
    }
  }
  at::Tensor mixed = timed(profile, Piece::attention, [&] { return rows.mix(q, k, v, layer); });
  mixed = timed(profile, Piece::norm_and_rope, [&] { return weights.inner_norm(mixed); });
  return timed(profile, Piece::other_linear, [&] { return weights.o(input(mixed)); });
}

}  // namespace twell::lm
