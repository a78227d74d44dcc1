#include "measure/ffn_bench.h"

#include <torch/types.h>

#include <algorithm>

#include "decoder/sparse_operators.h"
#include "device/calibration.h"
#include "device/device.h"
#include "measure/dense_ffn.h"
#include "measure/layer_timer.h"
#include "measure/reference.h"

namespace twell::lm {

BenchLayer::BenchLayer(const SyntheticLayer& made, const ActivationChoice& choice,
                       at::Device device)
    : source(made.map([device](const at::Tensor& t) { return t.to(device); })),
      sparse(make_sparse_feed_forward(parameters_of(source), choice)) {}

namespace {

std::function<void()> settle_of(at::Device device) {
  if (device.is_cpu()) return {};
  return [device] { runtime_of(device).synchronize(); };
}

// The fastest of PyTorch's variants for this number of tokens, one object per layer.
struct Baseline {
  DenseVariant variant;
  std::vector<DenseFfn> layers;
};
Baseline pick_baseline(const FfnCase& c) {
  const auto variants = available_variants(c.layers.front().source, c.activation, c.tokens());
  std::vector<std::vector<DenseFfn>> candidates;
  std::vector<std::function<void(std::int64_t)>> sides;
  for (const DenseVariant variant : variants) {
    std::vector<DenseFfn>& layers = candidates.emplace_back();
    for (const BenchLayer& layer : c.layers) {
      layers.emplace_back(variant, layer.source, c.activation, c.tokens());
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
  quick.min_seconds = c.measure.min_seconds / 2;
  quick.settle = settle_of(c.inputs.device());
  quick.alive = c.measure.alive;
  const auto timings = measure_in_turns(sides, quick);
  std::size_t best = 0;
  for (std::size_t i = 1; i < timings.size(); ++i) {
    if (timings[i].median_us < timings[best].median_us) best = i;
  }
  return {variants[best], std::move(candidates[best])};
}

struct Activity {
  double mean = 0, distinct = 0;  // distinct: neurons that fire in one call, mean over calls
  std::int64_t max = 0;
};
Activity measure_activity(const FfnCase& c) {
  struct Counts final : FfnObserver {
    bool wants_counts() const override { return true; }
    void observe(const FfnActivity& call) override {
      activity.mean += static_cast<double>(call.counts.nnz());
      activity.max = std::max(activity.max, call.counts.max_row_nnz());
      activity.distinct += static_cast<double>(call.counts.active_neurons());
    }
    Activity activity;
  } counts;
  const std::int64_t slices = c.inputs.size(0);
  for (std::int64_t s = 0; s < slices; ++s) {
    c.layers[static_cast<std::size_t>(s) % c.layers.size()].sparse->forward(c.inputs[s], 0,
                                                                            &counts);
  }
  counts.activity.mean /= static_cast<double>(slices * c.tokens());
  counts.activity.distinct /= static_cast<double>(slices);
  return counts.activity;
}

// Errors of both sides against fp64, on up to 32 tokens spread over the first slices.
nlohmann::json measure_errors(const FfnCase& c, const Baseline& baseline) {
  constexpr std::int64_t kRows = 32;
  std::vector<at::Tensor> x, dense, sparse;
  for (std::int64_t s = 0; s < c.inputs.size(0) && s * c.tokens() < kRows; ++s) {
    const at::Tensor slice = c.inputs[s];
    const std::int64_t step = std::max<std::int64_t>(1, c.tokens() / kRows);
    const auto pick = [step](const at::Tensor& t) { return t.slice(0, 0, kRows * step, step); };
    x.push_back(pick(slice));
    dense.push_back(pick(baseline.layers.front()(slice)));
    sparse.push_back(pick(c.layers.front().sparse->forward(slice, 0, nullptr)));
  }
  const at::Tensor reference = reference_ffn(c.layers.front().source, c.activation, at::cat(x));
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
    for (const BenchLayer& layer : c.layers) {
      layers_.push_back(
          make_sparse_feed_forward(parameters_of(layer.source), c.activation, FfnPath::automatic));
    }
  }
  void operator()(std::int64_t i, const at::Tensor& x) const {
    layers_[static_cast<std::size_t>(i) % layers_.size()]->forward(x, 0, nullptr);
  }
  // What the choice goes by.
  std::string cost() const { return layers_.front()->cost()->source(); }
  // The path that a call takes now.
  const char* path(const at::Tensor& x) const {
    struct Path final : FfnObserver {
      void observe(const FfnActivity& activity) override { path = activity.path; }
      FfnPath path = FfnPath::sparse;
    } seen;
    layers_.front()->forward(x, 0, &seen);
    return name_of(seen.path);
  }

 private:
  std::vector<std::unique_ptr<FeedForward>> layers_;
};

// A prompt comes before all else: by it layers choose the variant of their gate. On a GPU they
// order their neurons by its counts, and judge their screens, in the calls after those that
// counted.
void settle_layer(const at::Tensor& prompt, const std::function<void(const at::Tensor&)>& layer) {
  layer(prompt);
  if (prompt.is_cpu()) return;
  for (int call = 0; call < 2; ++call) {
    runtime_of(prompt.device()).synchronize();
    layer(prompt.narrow(0, 0, 1));
  }
}

}  // namespace

nlohmann::json run_ffn_case(const FfnCase& c, const std::optional<Peaks>& peaks,
                            const std::function<void()>& tick) {
  const std::int64_t rows = c.inputs.is_cpu() ? 64 : kTokensToOrder;
  const at::Tensor prompt = c.inputs.view({-1, c.shape.width}).slice(0, 0, rows);
  for (const BenchLayer& layer : c.layers) {
    settle_layer(prompt, [&](const at::Tensor& x) { layer.sparse->forward(x, 0, nullptr); });
  }
  const Activity activity = measure_activity(c);
  const Baseline baseline = pick_baseline(c);
  tick();
  const auto input = [&c](std::int64_t i) { return c.inputs[i % c.inputs.size(0)]; };
  const auto dense = [&](std::int64_t i) {
    baseline.layers[static_cast<std::size_t>(i) % baseline.layers.size()](input(i));
  };
  const auto sparse = [&](std::int64_t i) {
    c.layers[static_cast<std::size_t>(i) % c.layers.size()].sparse->forward(input(i), 0, nullptr);
  };
  const AutomaticLayers automatic(c);
  for (std::int64_t l = 0; l < std::ssize(c.layers); ++l) {
    settle_layer(prompt, [&](const at::Tensor& x) { automatic(l, x); });
  }
  const auto chosen = [&](std::int64_t i) { automatic(i, input(i)); };
  MeasureOptions measure = c.measure;
  measure.settle = settle_of(c.inputs.device());
  const auto timings = measure_in_turns({dense, sparse, chosen}, measure, tick);
  std::vector<double> ratios;
  for (std::size_t r = 0; r < timings[0].runs_us.size(); ++r) {
    ratios.push_back(timings[0].runs_us[r] / timings[1].runs_us[r]);
  }
  const FfnWork work = ffn_work(c.tokens(), c.shape, activity.mean, activity.distinct);
  nlohmann::json result = {{"tokens", c.tokens()},
                           {"nnz_target", c.nnz_target},
                           {"nnz_mean", activity.mean},
                           {"nnz_max", activity.max},
                           {"distinct_neurons", activity.distinct},
                           {"dense_us", timings[0].median_us},
                           {"dense_us_min", timings[0].min_us},
                           {"dense_us_max", timings[0].max_us},
                           {"dense_impl", name_of(baseline.variant)},
                           {"runs", timings[0].runs_us.size()},
                           {"sparse_us", timings[1].median_us},
                           {"sparse_us_min", timings[1].min_us},
                           {"sparse_us_max", timings[1].max_us},
                           {"sparse_impl", c.layers.front().sparse->describe(c.tokens())},
                           {"auto_us", timings[2].median_us},
                           {"auto_path", automatic.path(input(0))},
                           {"auto_cost", automatic.cost()},
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

}  // namespace twell::lm
