// Attention of single queries, as every step of decoding has it for each sequence:
// y = softmax(q Kᵀ / √d) V, head by head. A sequence's keys and values stream by once, at the
// bandwidth of memory; several query heads may share those of one head (grouped-query attention).
// All of one dtype: bf16 or f32. Scores, probabilities and sums are f32, y is rounded once. The
// result does not depend on the number of threads. A score that is NaN or plus infinity makes its
// head NaN, as a softmax does. Errors are twell::Error naming operation and argument.
#pragma once

#include <cstdint>
#include <span>

#include "twell/context.h"
#include "twell/tensor_view.h"

namespace twell {

struct AttentionHeads {
  std::int64_t query = 0;      // heads of q and y
  std::int64_t key_value = 0;  // heads of K and V, of which `query` is a multiple
};

// One sequence's query.
struct DecodeQuery {
  ConstMatrixView q;                   // [query heads, d]
  ConstMatrixView keys, values;        // [positions >= 1, d]: those of the first head,
  std::int64_t key_heads_apart = 0;    // and elements from there to the next head's
  std::int64_t value_heads_apart = 0;  // likewise
  MatrixView y;                        // as q
};
void decode_attention(Context& context, const AttentionHeads& heads,
                      std::span<const DecodeQuery> queries);

}  // namespace twell
