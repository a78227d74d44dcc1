#include "layer/own_dense.h"

#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "core/team.h"
#include "ops/forward/dense_ffn.h"
#include "ops/weight.h"
#include "twell/transpose.h"

namespace twell {
namespace {

bool all_finite(const Context& context, const WeightView& weight, DType x) {
  const Weight w(context.tier(), x, weight);
  std::atomic<bool> finite = true;
  parallel_for(context, w.rows, [&](std::int64_t r) {
    if (!w.row_finite(r)) finite.store(false, std::memory_order_relaxed);
  });
  return finite;
}

// [columns, H] of a neuron-major down [H, columns].
PackedWeight pack_down(Context& context, const WeightView& down) {
  PreparedMemory stored(static_cast<std::size_t>(bytes_of(down.type, down.rows * down.cols)));
  return PackedWeight(transpose(down, stored.mutable_data(), down.rows, &context), &context);
}

}  // namespace

bool has_own_dense(const Context& context, const LayerBlock& block) {
  const FfnWeights& w = block.weights();
  const DType x = block.shape().dtype;
  return all_finite(context, w.down, x) && (!w.up || all_finite(context, *w.up, x));
}

DenseFfn make_own_dense(Context& context, const LayerBlock& block) {
  const FfnWeights& w = block.weights();
  struct Packed {
    LayerBlock block;  // keeps a packed gate
    std::optional<PackedWeight> gate, up;
    PackedWeight down;
  };
  auto packed = std::make_shared<Packed>(Packed{block, {}, {}, pack_down(context, w.down)});
  DenseWeights weights{w.gate, {}, packed->down.view()};
  if (w.gate.layout == WeightLayout::rows) {
    weights.gate = packed->gate.emplace(w.gate, &context).view();
  }
  if (w.up) weights.up = packed->up.emplace(*w.up, &context).view();
  return [packed, weights](Context& own, ConstMatrixView in, MatrixView out, FfnCounts* counts) {
    dense_ffn(own, in, weights, packed->block.form(), out, counts);
  };
}

std::int64_t own_dense_bytes(const LayerBlock& block) {
  const FfnWeights& w = block.weights();
  const auto bytes = [](const WeightView& v, std::int64_t rows, std::int64_t cols) {
    return static_cast<std::int64_t>(packed_bytes(v.type, rows, cols));
  };
  std::int64_t all = bytes(w.down, w.down.cols, w.down.rows);
  if (w.up) all += bytes(*w.up, w.up->rows, w.up->cols);
  if (w.gate.layout == WeightLayout::rows) all += bytes(w.gate, w.gate.rows, w.gate.cols);
  return all;
}

}  // namespace twell
