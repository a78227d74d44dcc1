// Each head's positions in parts; a part gives a largest score, a sum of exponentials and a sum of
// values, and the parts are brought to one scale at the end.
#include <algorithm>
#include <cmath>

#include "core/team.h"
#include "kernels/kernel.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/attention.h"

namespace twell {
namespace {

constexpr const char* kAttention = "decode_attention";

// Positions of a unit of work. Fixed, so that bits do not depend on threads; its scores and keys
// (64 KB of a head of 64) stay in L2 for the query heads that share them.
constexpr std::int64_t kPart = 512;

// What each head and part gave: its largest score, Σ e^(score − largest), and the same sum of v.
struct Partials {
  float* data;
  std::int64_t cols;

  static constexpr std::int64_t kHead = 16;  // floats; a cache line
  static std::int64_t stride(std::int64_t cols) { return kHead + (cols + 15) / 16 * 16; }
  float* at(std::int64_t unit) const { return data + unit * stride(cols); }
  float& largest(std::int64_t unit) const { return at(unit)[0]; }
  float& sum(std::int64_t unit) const { return at(unit)[1]; }
  float* y(std::int64_t unit) const { return at(unit) + kHead; }
};

void require_query(const AttentionHeads& heads, const DecodeQuery& query) {
  const DType dtype = query.q.dtype;
  const std::int64_t d = query.q.cols;
  require(d >= 1, kAttention, "q", "expected at least one column");
  require_matrix(kAttention, "q", query.q, dtype, heads.query, d);
  require(query.keys.rows >= 1, kAttention, "keys", "expected at least one position");
  require_matrix(kAttention, "keys", query.keys, dtype, query.keys.rows, d);
  require_matrix(kAttention, "values", query.values, dtype, query.keys.rows, d);
  require_matrix(kAttention, "y", query.y, dtype, heads.query, d);
}

std::int64_t parts_of(const DecodeQuery& query) { return (query.keys.rows + kPart - 1) / kPart; }

// Rows of a part, of the head that is so many elements from the first.
ConstMatrixView rows_of(const ConstMatrixView& rows, std::int64_t apart, std::int64_t part) {
  ConstMatrixView out = rows.slice(part * kPart, std::min(kPart, rows.rows - part * kPart));
  out.data = static_cast<const std::byte*>(out.data) +
             apart * static_cast<std::int64_t>(size_of(rows.dtype));
  return out;
}

void attend_part(const Kernels& kernels, const DecodeQuery& query, std::int64_t head,
                 std::int64_t key_head, std::int64_t part, const Partials& partials,
                 std::int64_t unit) {
  const ConstMatrixView keys = rows_of(query.keys, key_head * query.key_heads_apart, part);
  const ConstMatrixView values = rows_of(query.values, key_head * query.value_heads_apart, part);
  const float scale = 1.0F / std::sqrt(static_cast<float>(keys.cols));
  float weights[kPart];
  kernels.key_scores(query.q.row_bytes(head), keys, scale, weights);
  const ExponentialSum scores = kernels.exponentials(weights, keys.rows);
  partials.largest(unit) = scores.largest;
  partials.sum(unit) = scores.sum;
  kernels.weighted_values(values, weights, partials.y(unit));
}

// y of a head from the partials of its parts, `apart` units from one to the next.
void merge(const Kernels& kernels, const Partials& partials, std::int64_t unit, std::int64_t apart,
           std::int64_t parts, void* y) {
  float largest = partials.largest(unit);
  for (std::int64_t p = 1; p < parts; ++p) {
    largest = std::max(largest, partials.largest(unit + p * apart));
  }
  float sum = 0;
  float* const to = partials.y(unit);
  for (std::int64_t p = 0; p < parts; ++p) {
    const float weight = std::exp(partials.largest(unit + p * apart) - largest);
    sum += weight * partials.sum(unit + p * apart);
    const float* const part = partials.y(unit + p * apart);
    for (std::int64_t i = 0; i < partials.cols; ++i) {
      to[i] = p == 0 ? weight * part[i] : to[i] + weight * part[i];
    }
  }
  for (std::int64_t i = 0; i < partials.cols; ++i) to[i] /= sum;
  kernels.round_row(to, partials.cols, y);
}

}  // namespace

void decode_attention(Context& context, const AttentionHeads& heads,
                      std::span<const DecodeQuery> queries) {
  require(heads.query >= 1 && heads.key_value >= 1 && heads.query % heads.key_value == 0,
          kAttention, "heads", "expected a multiple of the ", heads.key_value,
          " heads of keys, got ", heads.query);
  std::int64_t most_parts = 0;
  for (const DecodeQuery& query : queries) {
    require_query(heads, query);
    require(query.q.dtype == queries[0].q.dtype && query.q.cols == queries[0].q.cols, kAttention,
            "queries", "expected one dtype and head size for all");
    most_parts = std::max(most_parts, parts_of(query));
  }
  if (queries.empty()) return;
  const Kernels& kernels = kernels_of(context.tier(), queries[0].q.dtype);
  const std::int64_t sharing = heads.query / heads.key_value;
  const std::int64_t of_query = most_parts * heads.query;
  const std::int64_t units = std::ssize(queries) * of_query;
  const std::int64_t cols = queries[0].q.cols;
  const auto floats = static_cast<std::size_t>(units * Partials::stride(cols));
  const Partials partials = {
      static_cast<float*>(context.scratch(0, kPartialY, floats * sizeof(float))), cols};
  // Of [query][key-value head][part][query head that shares it]: the last are one thread's, unless
  // that leaves threads without work.
  const std::int64_t chunk = units / sharing >= 2L * context.threads() ? sharing : 1;
  parallel(context, [&](Team& team) {
    team.for_dynamic(units / chunk, 1, [&](std::int64_t group) {
      const std::int64_t first = group * chunk;
      const DecodeQuery& query = queries[static_cast<std::size_t>(first / of_query)];
      const std::int64_t part = first / sharing % most_parts;
      if (part >= parts_of(query)) return;
      const std::int64_t key_head = first % of_query / (sharing * most_parts);
      for (std::int64_t unit = first; unit < first + chunk; ++unit) {
        attend_part(kernels, query, key_head * sharing + unit % sharing, key_head, part, partials,
                    unit);
      }
    });
    team.for_static_nowait(std::ssize(queries) * heads.query, [&](std::int64_t row) {
      const DecodeQuery& query = queries[static_cast<std::size_t>(row / heads.query)];
      const std::int64_t first = row / sharing * most_parts * sharing + row % sharing;
      merge(kernels, partials, first, sharing, parts_of(query),
            query.y.row_bytes(row % heads.query));
    });
  });
}

}  // namespace twell
