// The layer as training runs it: ffn() that also keeps where the gate fired.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "ops/gate.h"
#include "ops/hot_neurons.h"
#include "ops/plan.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/train.h"

namespace twell {
namespace {

constexpr const char* kOperation = "ffn_forward";

// One block of rows. T: the layer's dtype.
template <class T>
struct ForwardBlock {
  const Kernels& kernels;
  const FfnWeights& weights;
  Activation kind;
  const TwellView& packed;
  const HotSet& hot;
  SparseX hidden;               // [rows, hot neurons]
  const std::int64_t* offsets;  // of the block's rows
  std::int32_t* neurons;
  T *v, *u;

  // The row's places, from the packed gate.
  void take(std::int64_t row) const {
    std::int64_t i = offsets[row];
    for (std::int64_t t = 0; t < packed.tiles; ++t) {
      packed.for_each_slot(row, t, [&](std::int32_t neuron, float value) {
        neurons[i] = neuron;
        v[i++] = static_cast<T>(value);
      });
    }
    if (hot.size() == 0) return;
    hidden.clear_row(row);
    if (weights.up) return;  // h comes with u
    for (i = offsets[row]; i < offsets[row + 1]; ++i) {
      const std::int32_t place = hot.place(neurons[i]);
      if (place >= 0) hidden.set(row, place, activated(kind, static_cast<float>(v[i])));
    }
  }

  // u and h of the row's hot places, of the hot neurons from `first` on.
  void take_up(std::int64_t row, std::int64_t first, std::int64_t count, const float* c) const {
    const auto* const end = neurons + offsets[row + 1];
    const auto* at =
        std::lower_bound(neurons + offsets[row], const_cast<std::int32_t*>(end), hot.list()[first]);
    const std::int32_t last = hot.list()[first + count - 1];
    for (; at != end && *at <= last; ++at) {
      const std::int32_t place = hot.place(*at);
      if (place < 0) continue;
      const std::int64_t i = at - neurons;
      const float value = c[place - first];
      u[i] = static_cast<T>(value);
      hidden.set(row, place, activated(kind, static_cast<float>(v[i])) * value);
    }
  }

  // The other places: u, h, and their part of sum [D]. `active` has room for the row. Returns Σ |h|
  // of all places.
  double finish(std::int64_t row, const void* x, const ActiveNeurons& room, bool add,
                float* sum) const {
    auto* list = const_cast<std::int32_t*>(room.neurons);
    ActiveNeurons active = room;
    const auto is_cold = [&](std::int64_t i) {
      return hot.size() == 0 || hot.place(neurons[i]) < 0;
    };
    for (std::int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
      if (!is_cold(i)) continue;
      list[active.count] = neurons[i];
      active.values[active.count++] = 1.0F;
    }
    if (weights.up) kernels.sampled_dots(x, *weights.up, active);
    double l1 = 0.0;
    for (std::int64_t i = offsets[row], n = 0; i < offsets[row + 1]; ++i) {
      const float g = activated(kind, static_cast<float>(v[i]));
      if (is_cold(i)) {
        if (weights.up) u[i] = static_cast<T>(active.values[n]);
        active.values[n++] *= g;
      }
      l1 += std::fabs(weights.up ? g * static_cast<float>(u[i]) : g);
    }
    kernels.weighted_rows(weights.down, active, add, sum);
    return l1;
  }
};

struct Scratch {
  SparseX hidden;
  float* sums = nullptr;  // [row_block, D]
};

Scratch take_scratch(Context& context, const FfnPlan& plan, const FfnWeights& weights,
                     const Kernels& kernels) {
  const FfnShape shape = weights.shape();
  const std::int64_t width = weights.down.cols;
  for (int t = 0; t < plan.threads; ++t) {
    context.scratch(t, kActive, static_cast<std::size_t>(shape.hidden) * 8);
    context.scratch(t, kPartialY, static_cast<std::size_t>(width) * sizeof(float));
  }
  Scratch out;
  if (plan.hot_share > 1.0) return out;
  out.hidden = {nullptr, SparseX::stride_of(kernels.x, plan.row_block, shape.hidden),
                kernels.x.dtype};
  out.hidden.data = static_cast<std::byte*>(context.scratch(
      0, kHotHidden,
      static_cast<std::size_t>(plan.row_block * out.hidden.stride) * size_of(kernels.x.dtype)));
  out.sums = static_cast<float*>(context.scratch(
      0, kHotSums, static_cast<std::size_t>(plan.row_block * width) * sizeof(float)));
  const std::size_t panels = chosen_panel_bytes(shape.dtype, shape.width);
  for (int t = 0; t < plan.threads; ++t) context.scratch(t, kHotPanels, panels);
  return out;
}

template <class T>
void run(Context& context, ConstMatrixView x, const FfnWeights& weights,
         const ActivationSpec& activation, MatrixView y, FfnPattern& pattern, FfnCounts& counts) {
  const FfnShape shape = weights.shape();
  FfnPlan plan = plan_ffn(context, x.rows, shape, weights.form());
  const Kernels& kernels = kernels_of(plan.tier, shape.dtype);
  const TwellView packed = scratch_activation(context, shape, plan.row_block, plan.tile);
  // Pre-activations, since backward needs the slope there.
  Gate gate(context, plan, weights, {Activation::fat_relu, activation.kept_above()}, packed);
  HotSet hot(context, shape.hidden);
  Scratch scratch = take_scratch(context, plan, weights, kernels);
  const std::int64_t width = weights.down.cols;
  std::vector<double> l1(static_cast<std::size_t>(plan.row_block));
  for (std::int64_t first = 0; first < x.rows; first += plan.row_block) {
    const std::int64_t rows = std::min(plan.row_block, x.rows - first);
    const ConstMatrixView block_x = x.slice(first, rows);
    const MatrixView block_y = y.slice(first, rows);
    gate.begin(block_x);
    std::int64_t candidates = 0;
#pragma omp parallel num_threads(plan.threads) reduction(+ : candidates)
    {
      candidates += gate.run(omp_get_thread_num());
      count_neurons(packed, rows, shape.hidden, hot.counts());
      hot.choose(plan.hot_share * static_cast<double>(rows) + plan.hot_rows, {weights.down},
                 kernels);
    }
    counts.candidates += candidates;
    std::int32_t* const row_nnz = counts.row_nnz.data() + first;
    for (std::int64_t r = 0; r < rows; ++r) row_nnz[r] = packed.row_count(r);
    for (std::int64_t n = 0; n < shape.hidden; ++n) {
      counts.neuron_nnz[static_cast<std::size_t>(n)] += hot.counts()[n];
    }
    pattern.append(row_nnz, rows);  // may allocate: no thread is running
    if (hot.size() > 0) {
      scratch.hidden.stride = SparseX::stride_of(kernels.x, plan.row_block, hot.size());
    }
    const ForwardBlock<T> block = {kernels,
                                   weights,
                                   activation.kind,
                                   packed,
                                   hot,
                                   scratch.hidden,
                                   pattern.view().offsets + first,
                                   pattern.neurons(),
                                   static_cast<T*>(pattern.v()),
                                   static_cast<T*>(pattern.u())};
#pragma omp parallel num_threads(plan.threads)
    {
      const int thread = omp_get_thread_num();
      auto* c = static_cast<float*>(context.scratch(thread, kAccumulators, 0));
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < rows; ++row) block.take(row);
      if (hot.size() > 0) {
        void* panels = context.scratch(thread, kHotPanels, 0);
        if (weights.up) {
          gate.prepare_x();
#pragma omp for schedule(dynamic, 1)
          for (std::int64_t n = 0; n < hot.size(); n += kChosenNeurons) {
            const std::int64_t count = std::min(kChosenNeurons, hot.size() - n);
            GemmArgs args = gate.gemm_args();
            args.c = c;
            dot_chosen(kernels, args, {*weights.up, hot.list(), hot.size()}, n, count, panels);
            for (std::int64_t row = 0; row < rows; ++row) {
              block.take_up(row, n, count, c + row * kColumnBlock);
            }
          }
        }
#pragma omp for schedule(dynamic, 1)
        for (std::int64_t column = 0; column < width; column += kColumnBlock) {
          const std::int64_t columns = std::min(kColumnBlock, width - column);
          combine_chosen(kernels, block.hidden, rows, {weights.down, hot.list(), hot.size()},
                         column, columns, false, panels, c);
          for (std::int64_t row = 0; row < rows; ++row) {
            std::copy_n(c + row * kColumnBlock, columns, scratch.sums + row * width + column);
          }
        }
      }
      auto* list = static_cast<std::int32_t*>(context.scratch(thread, kActive, 0));
      const ActiveNeurons room = {list, reinterpret_cast<float*>(list + shape.hidden), 0};
      auto* own = static_cast<float*>(context.scratch(thread, kPartialY, 0));
#pragma omp for schedule(dynamic, 4)
      for (std::int64_t row = 0; row < rows; ++row) {
        float* sum = hot.size() > 0 ? scratch.sums + row * width : own;
        l1[static_cast<std::size_t>(row)] =
            block.finish(row, block_x.row_bytes(row), room, hot.size() > 0, sum);
        kernels.round_row(sum, width, block_y.row_bytes(row));
      }
    }
    for (std::int64_t row = 0; row < rows; ++row) counts.l1 += l1[static_cast<std::size_t>(row)];
  }
}

}  // namespace

void ffn_forward(Context& context, ConstMatrixView x, const FfnWeights& weights,
                 const ActivationSpec& activation, MatrixView y, FfnPattern& pattern,
                 FfnCounts* counts) {
  require_ffn(kOperation, x, weights, activation, y);
  const FfnShape shape = weights.shape();
  FfnCounts own;
  FfnCounts& all = counts != nullptr ? *counts : own;
  all = {};
  all.row_nnz.resize(static_cast<std::size_t>(x.rows));
  all.neuron_nnz.resize(static_cast<std::size_t>(shape.hidden));
  pattern.reset(x.rows, shape);
  if (x.rows == 0) return;
  if (shape.dtype == DType::bf16) {
    run<bf16>(context, x, weights, activation, y, pattern, all);
  } else {
    run<float>(context, x, weights, activation, y, pattern, all);
  }
}

}  // namespace twell
