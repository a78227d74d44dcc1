// Attention of single queries: y = softmax(q Kᵀ / √d) V, head by head. A step of decoding needs one
// for each sequence. The keys and values of a sequence are read once, at the bandwidth of memory.
// Several query heads may share one head of keys and values (grouped-query attention).
//
// All operands have one dtype: bf16 or f32. Scores, probabilities and sums are f32; y is rounded
// once. The result does not depend on the number of threads. A score that is NaN or plus infinity
// makes its head NaN, as a softmax does. An error is a twell::Error that names operation and
// argument.
#pragma once

#include <cstdint>
#include <span>

#include "twell/context.h"
#include "twell/tensor_view.h"

#pragma GCC visibility push(default)
namespace twell {

// How many heads the queries have, and how many the keys and values.
struct AttentionHeads {
  std::int64_t query = 0;      // heads of q and y
  std::int64_t key_value = 0;  // heads of K and V; `query` is a multiple of it
};

// One sequence's query.
struct DecodeQuery {
  ConstMatrixView q;                   // [query heads, d]
  ConstMatrixView keys, values;        // [positions >= 1, d] of the first head
  std::int64_t key_heads_apart = 0;    // elements from a head's keys to those of the next head
  std::int64_t value_heads_apart = 0;  // the same for values
  MatrixView y;                        // as q
};
// Computes the y of every query.
void decode_attention(Context& context, const AttentionHeads& heads,
                      std::span<const DecodeQuery> queries);

}  // namespace twell
#pragma GCC visibility pop
