#include "cli/bench_ffn.h"

#include <torch/types.h>

#include <algorithm>

#include "cli/dense_ffn.h"
#include "cli/layer_timer.h"
#include "cli/measure.h"
#include "cli/reference.h"
#include "models/device.h"
#include "models/linear.h"
#include "models/sparse_operators.h"

namespace twell::cli {

ActivationSpec BenchFfnOptions::spec() const { return lm::sparse_activation(choice()); }

lm::ActivationChoice BenchFfnOptions::choice() const {
  if (activation == "fat_relu") return {io::HiddenAct::fat_relu, threshold};
  return {activation == "relu" ? io::HiddenAct::relu : io::HiddenAct::relu_squared, 0.0F};
}

at::ScalarType BenchFfnOptions::type() const {
  return dtype == "bf16" ? at::kBFloat16 : dtype == "f16" ? at::kHalf : at::kFloat;
}

SyntheticShape BenchFfnOptions::shape(double nnz_mean) const {
  SyntheticShape shape;
  shape.input = input;
  shape.hidden = hidden;
  shape.gated = gated;
  shape.dtype = type();
  shape.activity.mean_nnz = nnz_mean;
  shape.threshold = activation == "fat_relu" ? static_cast<double>(threshold) : 0.0;
  return shape;
}

SparseLayer::SparseLayer(const SyntheticLayer& made, const lm::ActivationChoice& choice,
                         at::Device device)
    : source(made) {
  for (at::Tensor* t : {&source.gate, &source.up, &source.down, &source.down_t}) {
    if (t->defined()) *t = t->to(device);
  }
  if (device.is_cpu()) {
    layer = lm::make_sparse_feed_forward(parameters_of(source), choice);
  } else {
    packed = lm::packed_weight(source.gate);
  }
}

namespace {

void add_counts(const at::Tensor& row_nnz, const at::Tensor& neurons, FfnStats& stats) {
  stats.nnz = row_nnz.sum().item<std::int64_t>();
  stats.max_row_nnz = row_nnz.numel() > 0 ? row_nnz.max().item<std::int64_t>() : 0;
  if (stats.neuron_counts == nullptr) return;
  const at::Tensor counts = neurons.cpu();
  const auto* from = counts.const_data_ptr<std::int64_t>();
  for (std::int64_t n = 0; n < counts.numel(); ++n) stats.neuron_counts[n] += from[n];
}

at::Tensor run_operator(const SparseLayer& layer, const ActivationSpec& activation,
                        const at::Tensor& x, FfnStats* stats) {
  const lm::SparseOperands weights{layer.packed, layer.source.up, layer.source.down_t, {}, {}};
  if (stats == nullptr) return lm::sparse_ffn(x, weights, activation);
  const auto [y, row_nnz, neurons, candidates] = lm::sparse_ffn_counted(x, weights, activation);
  add_counts(row_nnz, neurons, *stats);
  return y;
}

}  // namespace

at::Tensor run_sparse(const SparseLayer& layer, const ActivationSpec& activation,
                      const at::Tensor& x, FfnStats* stats) {
  if (!x.is_cpu()) return run_operator(layer, activation, x, stats);
  if (stats == nullptr) return layer.layer->forward(x, 0, nullptr);
  struct Counts final : lm::FfnObserver {
    bool wants_counts() const override { return true; }
    void observe(const lm::FfnActivity& activity) override {
      row_nnz = activity.row_nnz;
      neuron_nnz = activity.neuron_nnz;
    }
    at::Tensor row_nnz, neuron_nnz;
  } counts;
  at::Tensor y = layer.layer->forward(x, 0, &counts);
  add_counts(counts.row_nnz, counts.neuron_nnz, *stats);
  return y;
}

namespace {

std::function<void()> settle_of(at::Device device) {
  if (device.is_cpu()) return {};
  return [device] { lm::runtime_of(device).synchronize(); };
}

std::string plan_text(const FfnCase& c) {
  if (c.options.device.is_cpu()) {
    return c.layers.front().layer->describe(c.tokens);
  }
  return lm::runtime_of(c.options.device)
      .explain_ffn({c.options.input, c.options.hidden, c.options.gated, c.options.type()},
                   c.tokens);
}

// The fastest of PyTorch's forms for this number of tokens, one object per layer.
struct Baseline {
  DenseForm form;
  std::vector<DenseFfn> layers;
};
Baseline pick_baseline(const FfnCase& c) {
  const ActivationSpec activation = c.options.spec();
  const auto forms = available_forms(c.layers.front().source, activation, c.tokens);
  std::vector<std::vector<DenseFfn>> candidates;
  std::vector<std::function<void(std::int64_t)>> sides;
  for (const DenseForm form : forms) {
    std::vector<DenseFfn>& layers = candidates.emplace_back();
    for (const SparseLayer& layer : c.layers) {
      layers.emplace_back(form, layer.source, activation, c.tokens);
    }
  }
  for (const auto& layers : candidates) {
    sides.push_back([&layers, &c](std::int64_t i) {
      const auto n = static_cast<std::size_t>(i);
      layers[n % layers.size()](c.inputs[i % c.inputs.size(0)]);
    });
  }
  MeasureOptions quick;
  quick.repeats = 3;
  quick.min_seconds = c.options.seconds / 2;
  quick.settle = settle_of(c.options.device);
  const auto timings = measure_in_turns(sides, quick);
  std::size_t best = 0;
  for (std::size_t i = 1; i < timings.size(); ++i) {
    if (timings[i].median_us < timings[best].median_us) best = i;
  }
  return {forms[best], std::move(candidates[best])};
}

struct Activity {
  double mean = 0, distinct = 0;  // distinct: neurons that fire in one call, mean over calls
  std::int64_t max = 0;
};
Activity measure_activity(const FfnCase& c) {
  Activity activity;
  std::vector<std::int64_t> fired(static_cast<std::size_t>(c.options.hidden));
  const std::int64_t slices = c.inputs.size(0);
  for (std::int64_t s = 0; s < slices; ++s) {
    std::fill(fired.begin(), fired.end(), 0);
    FfnStats stats;
    stats.neuron_counts = fired.data();
    const auto& layer = c.layers[static_cast<std::size_t>(s) % c.layers.size()];
    run_sparse(layer, c.options.spec(), c.inputs[s], &stats);
    activity.mean += static_cast<double>(stats.nnz);
    activity.max = std::max(activity.max, stats.max_row_nnz);
    activity.distinct += static_cast<double>(
        std::count_if(fired.begin(), fired.end(), [](std::int64_t n) { return n > 0; }));
  }
  activity.mean /= static_cast<double>(slices * c.tokens);
  activity.distinct /= static_cast<double>(slices);
  return activity;
}

// Errors of both sides against fp64, on up to 32 tokens spread over the first slices.
nlohmann::json measure_errors(const FfnCase& c, const Baseline& baseline) {
  constexpr std::int64_t kRows = 32;
  std::vector<at::Tensor> x, dense, sparse;
  for (std::int64_t s = 0; s < c.inputs.size(0) && s * c.tokens < kRows; ++s) {
    const at::Tensor slice = c.inputs[s];
    const std::int64_t step = std::max<std::int64_t>(1, c.tokens / kRows);
    const auto pick = [step](const at::Tensor& t) { return t.slice(0, 0, kRows * step, step); };
    x.push_back(pick(slice));
    dense.push_back(pick(baseline.layers.front()(slice)));
    sparse.push_back(pick(run_sparse(c.layers.front(), c.options.spec(), slice)));
  }
  const at::Tensor reference = reference_ffn(c.layers.front().source, c.options.spec(), at::cat(x));
  const at::Tensor dense_y = at::cat(dense), sparse_y = at::cat(sparse);
  return {{"max_rel_err", max_rel_err(sparse_y, reference)},
          {"dense_max_rel_err", max_rel_err(dense_y, reference)},
          {"rms_rel_err", rms_rel_err(sparse_y, reference)},
          {"dense_rms_rel_err", rms_rel_err(dense_y, reference)}};
}

// What the engine's layers do by themselves.
class AutomaticLayers {
 public:
  explicit AutomaticLayers(const FfnCase& c) {
    for (const SparseLayer& layer : c.layers) {
      layers_.push_back(lm::make_sparse_feed_forward(parameters_of(layer.source),
                                                     c.options.choice(), lm::FfnPath::automatic));
    }
  }
  void operator()(std::int64_t i, const at::Tensor& x) const {
    layers_[static_cast<std::size_t>(i) % layers_.size()]->forward(x, 0, nullptr);
  }
  // The path that a call takes now.
  const char* path(const at::Tensor& x) const {
    struct Path final : lm::FfnObserver {
      void observe(const lm::FfnActivity& activity) override { path = activity.path; }
      lm::FfnPath path = lm::FfnPath::sparse;
    } seen;
    layers_.front()->forward(x, 0, &seen);
    return lm::name_of(seen.path);
  }

 private:
  std::vector<std::unique_ptr<lm::FeedForward>> layers_;
};

}  // namespace

nlohmann::json run_ffn_case(const FfnCase& c, const std::optional<Peaks>& peaks,
                            const std::function<void()>& tick) {
  // A prompt comes before all else, from which layers learn the direction that inputs share.
  const at::Tensor prompt = c.inputs.view({-1, c.options.input}).slice(0, 0, 64);
  for (const SparseLayer& layer : c.layers) run_sparse(layer, c.options.spec(), prompt);
  const Activity activity = measure_activity(c);
  const Baseline baseline = pick_baseline(c);
  tick();
  const ActivationSpec activation = c.options.spec();
  const auto input = [&c](std::int64_t i) { return c.inputs[i % c.inputs.size(0)]; };
  const auto dense = [&](std::int64_t i) {
    baseline.layers[static_cast<std::size_t>(i) % baseline.layers.size()](input(i));
  };
  const auto sparse = [&](std::int64_t i) {
    run_sparse(c.layers[static_cast<std::size_t>(i) % c.layers.size()], activation, input(i));
  };
  const AutomaticLayers automatic(c);
  for (std::int64_t l = 0; l < std::ssize(c.layers); ++l) automatic(l, prompt);
  const auto chosen = [&](std::int64_t i) { automatic(i, input(i)); };
  MeasureOptions measure;
  measure.repeats = c.options.repeats;
  measure.min_seconds = c.options.seconds;
  measure.settle = settle_of(c.options.device);
  const auto timings = measure_in_turns({dense, sparse, chosen}, measure, tick);
  std::vector<double> ratios;
  for (std::size_t r = 0; r < timings[0].runs_us.size(); ++r) {
    ratios.push_back(timings[0].runs_us[r] / timings[1].runs_us[r]);
  }
  const FfnWork work =
      ffn_work(c.tokens, c.options.input, c.options.hidden, c.options.gated, activity.mean,
               activity.distinct, c.options.type() == at::kFloat ? 4 : 2);
  nlohmann::json result = {{"tokens", c.tokens},
                           {"nnz_target", c.nnz_target},
                           {"nnz_mean", activity.mean},
                           {"nnz_max", activity.max},
                           {"distinct_neurons", activity.distinct},
                           {"dense_us", timings[0].median_us},
                           {"dense_us_min", timings[0].min_us},
                           {"dense_us_max", timings[0].max_us},
                           {"dense_impl", name_of(baseline.form)},
                           {"sparse_us", timings[1].median_us},
                           {"sparse_us_min", timings[1].min_us},
                           {"sparse_us_max", timings[1].max_us},
                           {"sparse_impl", plan_text(c)},
                           {"auto_us", timings[2].median_us},
                           {"auto_path", automatic.path(input(0))},
                           {"auto_speedup", timings[0].median_us / timings[2].median_us},
                           {"speedup", timings[0].median_us / timings[1].median_us},
                           {"speedup_min", *std::min_element(ratios.begin(), ratios.end())},
                           {"speedup_max", *std::max_element(ratios.begin(), ratios.end())},
                           {"dense_bytes", work.dense_bytes},
                           {"dense_flops", work.dense_flops},
                           {"sparse_bytes", work.sparse_bytes},
                           {"sparse_flops", work.sparse_flops}};
  result.update(measure_errors(c, baseline));
  if (peaks) {
    const auto floor = [&](double bytes, double flops) {
      return std::max(bytes / peaks->bytes_per_us, flops / peaks->flops_per_us);
    };
    result["dense_floor_us"] = floor(work.dense_bytes, work.dense_flops);
    result["sparse_floor_us"] = floor(work.sparse_bytes, work.sparse_flops);
  }
  return result;
}

}  // namespace twell::cli
