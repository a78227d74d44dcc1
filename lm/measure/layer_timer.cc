#include "measure/layer_timer.h"

#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "decoder/cpu_context.h"
#include "decoder/sparse_operators.h"
#include "measure/timing.h"

namespace twell::lm {
namespace {

constexpr ActivationChoice kRelu{io::HiddenAct::relu, 0.0F};

StoredWeights stored(const FfnParameters& p) {
  const at::Tensor down = p.down.t();
  StoredWeights out{weight_view(p.gated() ? p.gate : p.up), {}, weight_view(down), true};
  if (p.gated()) out.up = weight_view(p.up);
  return out;
}

// Counts what the sparse path saw.
struct Counter final : FfnObserver {
  bool wants_counts() const override { return true; }
  void observe(const FfnActivity& activity) override {
    nnz += static_cast<double>(activity.counts.nnz());
    cells += static_cast<double>(activity.rows * activity.neurons);
  }
  double nnz = 0, cells = 0;
};

}  // namespace

FfnParameters parameters_of(const SyntheticLayer& layer) {
  // down_t is neuron-major: its transposed view is what the sparse path takes without a copy.
  FfnParameters out{layer, layer.gate, layer.up, layer.down_t.t()};
  if (!layer.up.defined()) {
    std::swap(out.gate, out.up);
    std::swap(out.gate_bias, out.up_bias);
  }
  return out;
}

LayerTimer::LayerTimer(const SyntheticShape& shape, std::uint64_t seed)
    : shape_(shape),
      seed_(seed),
      parameters_(parameters_of(synthetic_layer(shape, seed))),
      dense_(cpu_context(), stored(parameters_), {Activation::relu}, {.path = LayerPath::dense}) {
  sparse_ = make_sparse_feed_forward(parameters_, kRelu);
  // A prompt, from which the layer learns the direction that inputs share.
  const c10::InferenceMode no_grad;
  sparse_->forward(inputs(64)[0], 0, nullptr);
}

at::Tensor LayerTimer::inputs(std::int64_t tokens) const {
  const std::int64_t batches = input_batches(tokens);
  return synthetic_inputs(shape_, batches * tokens, seed_).view({batches, tokens, shape_.width});
}

LayerTimes LayerTimer::measure(std::int64_t tokens, int repeats, double seconds) {
  const c10::InferenceMode no_grad;
  const at::Tensor x = inputs(tokens);
  MeasureOptions options;
  options.repeats = repeats;
  options.min_seconds = seconds;
  const auto dense = [&](std::int64_t i) {
    const at::Tensor rows = x[i % x.size(0)];
    const at::Tensor y = at::empty_like(rows);
    const ConstMatrixView in = matrix_view(rows);
    dense_.run(cpu_context(), in, MatrixView(y.mutable_data_ptr(), in.dtype, in.rows, in.cols));
  };
  const auto sparse = [&](std::int64_t i) { sparse_->forward(x[i % x.size(0)], 0, nullptr); };
  const auto timings = measure_in_turns({dense, sparse}, options);
  return {timings[0].median_us, timings[1].median_us};
}

double LayerTimer::density(std::int64_t tokens) {
  const c10::InferenceMode no_grad;
  const at::Tensor x = inputs(tokens);
  Counter counter;
  for (std::int64_t b = 0; b < std::min<std::int64_t>(x.size(0), 8); ++b) {
    sparse_->forward(x[b], 0, &counter);
  }
  return counter.nnz / counter.cells;
}

CostModel LayerTimer::automatic_cost() const {
  const c10::InferenceMode no_grad;
  const auto layer = make_sparse_feed_forward(parameters_, kRelu, FfnPath::automatic);
  layer->forward(inputs(64)[0], 0, nullptr);
  return *layer->cost();
}

}  // namespace twell::lm
