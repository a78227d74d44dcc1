// twell bench ffn: one feed-forward layer, PyTorch's dense path against the sparse one.
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "cli/activity.h"
#include "cli/command.h"
#include "cli/dense_ffn.h"
#include "cli/measure.h"
#include "cli/peaks.h"
#include "cli/progress.h"
#include "cli/reference.h"
#include "cli/table.h"
#include "cli/views.h"
#include "twell/ffn.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

struct BenchFfnOptions : CommonOptions {
  std::int64_t input = 2048;
  std::int64_t hidden = 5632;
  std::vector<std::int64_t> tokens = {1, 64, 2048};
  std::vector<double> nnz = {29};
  bool gated = true;
  std::string dtype = "bf16";
  std::string activation = "relu";
  float threshold = 0.5F;
  int layers = 1;
  int repeats = 7;
  double seconds = 0.2;
  std::uint64_t seed = 1;
  bool peaks = false;
  std::string device = "cpu";

  ActivationSpec spec() const {
    if (activation == "fat_relu") return {Activation::fat_relu, threshold};
    return {activation == "relu" ? Activation::relu : Activation::relu_squared, 0.0F};
  }
  at::ScalarType type() const { return dtype == "bf16" ? at::kBFloat16 : at::kFloat; }
};

// The same layer for the sparse path: gate packed once, as at load.
struct SparseLayer {
  explicit SparseLayer(const SyntheticLayer& layer) : source(layer) {
    const ConstMatrixView gate = view(layer.gate);
    packed = at::empty({static_cast<std::int64_t>(packed_bytes(gate.dtype, gate.rows, gate.cols))},
                       at::kByte);
    pack_weight(gate, packed.data_ptr());
    weights.gate = {packed.data_ptr(), gate.dtype, gate.rows, gate.cols};
    if (layer.up.defined()) weights.up = view(layer.up);
    weights.down = view(layer.down_t);
  }
  SyntheticLayer source;
  at::Tensor packed;  // 64-byte aligned by PyTorch
  FfnWeights weights;
};

at::Tensor run_sparse(Context& context, const SparseLayer& layer, const ActivationSpec& activation,
                      const at::Tensor& x, FfnStats* stats = nullptr) {
  at::Tensor y = at::empty_like(x);
  ffn(context, view(x), layer.weights, activation, mutable_view(y), stats);
  return y;
}

struct Case {
  const BenchFfnOptions& options;
  Context& context;
  const std::vector<SparseLayer>& layers;
  at::Tensor inputs;  // [slices, M, D]
  std::int64_t tokens;
};

// The fastest of PyTorch's forms for this number of tokens, one object per layer.
struct Baseline {
  DenseForm form;
  std::vector<DenseFfn> layers;
};
Baseline pick_baseline(const Case& c) {
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
Activity measure_activity(const Case& c) {
  Activity activity;
  std::vector<std::int64_t> fired(static_cast<std::size_t>(c.options.hidden));
  const std::int64_t slices = c.inputs.size(0);
  for (std::int64_t s = 0; s < slices; ++s) {
    std::fill(fired.begin(), fired.end(), 0);
    FfnStats stats;
    stats.neuron_counts = fired.data();
    const auto& layer = c.layers[static_cast<std::size_t>(s) % c.layers.size()];
    run_sparse(c.context, layer, c.options.spec(), c.inputs[s], &stats);
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
nlohmann::json measure_errors(const Case& c, const Baseline& baseline) {
  constexpr std::int64_t kRows = 32;
  std::vector<at::Tensor> x, dense, sparse;
  for (std::int64_t s = 0; s < c.inputs.size(0) && s * c.tokens < kRows; ++s) {
    const at::Tensor slice = c.inputs[s];
    const std::int64_t step = std::max<std::int64_t>(1, c.tokens / kRows);
    const auto pick = [step](const at::Tensor& t) { return t.slice(0, 0, kRows * step, step); };
    x.push_back(pick(slice));
    dense.push_back(pick(baseline.layers.front()(slice)));
    sparse.push_back(pick(run_sparse(c.context, c.layers.front(), c.options.spec(), slice)));
  }
  const at::Tensor reference = reference_ffn(c.layers.front().source, c.options.spec(), at::cat(x));
  const at::Tensor dense_y = at::cat(dense), sparse_y = at::cat(sparse);
  return {{"max_rel_err", max_rel_err(sparse_y, reference)},
          {"dense_max_rel_err", max_rel_err(dense_y, reference)},
          {"rms_rel_err", rms_rel_err(sparse_y, reference)},
          {"dense_rms_rel_err", rms_rel_err(dense_y, reference)}};
}

nlohmann::json run_case(const Case& c, double nnz_target, const std::optional<Peaks>& peaks,
                        const std::function<void()>& tick) {
  const Activity activity = measure_activity(c);
  const Baseline baseline = pick_baseline(c);
  tick();
  const ActivationSpec activation = c.options.spec();
  const auto input = [&c](std::int64_t i) { return c.inputs[i % c.inputs.size(0)]; };
  const auto dense = [&](std::int64_t i) {
    baseline.layers[static_cast<std::size_t>(i) % baseline.layers.size()](input(i));
  };
  const auto sparse = [&](std::int64_t i) {
    run_sparse(c.context, c.layers[static_cast<std::size_t>(i) % c.layers.size()], activation,
               input(i));
  };
  MeasureOptions measure;
  measure.repeats = c.options.repeats;
  measure.min_seconds = c.options.seconds;
  const auto timings = measure_in_turns({dense, sparse}, measure, tick);
  std::vector<double> ratios;
  for (std::size_t r = 0; r < timings[0].runs_us.size(); ++r) {
    ratios.push_back(timings[0].runs_us[r] / timings[1].runs_us[r]);
  }
  const auto plan = plan_ffn(c.context, c.tokens, c.layers.front().weights);
  const FfnWork work =
      ffn_work(c.tokens, c.options.input, c.options.hidden, c.options.gated, activity.mean,
               activity.distinct, c.options.type() == at::kFloat ? 4 : 2);
  nlohmann::json result = {{"tokens", c.tokens},
                           {"nnz_target", nnz_target},
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
                           {"sparse_impl", plan.to_string()},
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

void print_results(const BenchFfnOptions& o, const nlohmann::json& results) {
  std::vector<std::string> headings = {"tokens",  "nnz",     "dense",     "sparse",
                                       "speedup", "(range)", "err dense", "err sparse"};
  if (o.peaks) headings.push_back("floor");
  Table table(headings);
  for (const auto& r : results) {
    std::vector<std::string> cells = {fmt::format("{}", r["tokens"].get<std::int64_t>()),
                                      fmt::format("{:.1f}", r["nnz_mean"].get<double>()),
                                      format_us(r["dense_us"]),
                                      format_us(r["sparse_us"]),
                                      format_ratio(r["speedup"]),
                                      fmt::format("{:.2f}-{:.2f}", r["speedup_min"].get<double>(),
                                                  r["speedup_max"].get<double>()),
                                      fmt::format("{:.1e}", r["dense_max_rel_err"].get<double>()),
                                      fmt::format("{:.1e}", r["max_rel_err"].get<double>())};
    if (o.peaks) cells.push_back(format_us(r["sparse_floor_us"]));
    table.row(cells);
  }
  o.say("\n{}", table.to_string());
  std::string impl;
  for (const auto& r : results) {
    o.say("{:>7} tokens: dense = {}; sparse = {}\n", r["tokens"].get<std::int64_t>(),
          r["dense_impl"].get<std::string>(), r["sparse_impl"].get<std::string>());
  }
  o.say(
      "Times are medians of {} runs in turns; errors are against fp64, relative to the largest "
      "output of the token.\n",
      o.repeats);
}

void run(BenchFfnOptions& o) {
  if (o.device != "cpu") {
    throw Error(ErrorKind::unsupported, "--device " + o.device, "only cpu is in this build");
  }
  for (const double k : o.nnz) {
    if (!(k >= 0 && k <= static_cast<double>(o.hidden))) {
      throw Error(ErrorKind::invalid_argument, "--nnz",
                  fmt::format("{} is not between 0 and --ffn {}", k, o.hidden));
    }
  }
  keep_freed_memory();
  const c10::InferenceMode no_grad;
  Context context({.threads = o.threads, .tier = std::nullopt});
  o.say("One {}gated layer, D = {}, H = {}, {}, {}, {} threads, {} instructions\n",
        o.gated ? "" : "non-", o.input, o.hidden, o.dtype, o.activation, o.threads,
        name_of(context.tier()));
  std::optional<Peaks> peaks;
  if (o.peaks) {
    peaks = measure_peaks(o.type());
    o.say("Memory {:.1f} GB/s, GEMM {:.2f} TFLOP/s\n", peaks->bytes_per_us / 1e3,
          peaks->flops_per_us / 1e6);
  }

  const auto steps_of_case = static_cast<std::int64_t>(2 * o.repeats + 1);
  const auto cases = static_cast<std::int64_t>(o.tokens.size() * o.nnz.size());
  Progress progress("measuring", cases * steps_of_case);
  std::int64_t done = 0;
  nlohmann::json results = nlohmann::json::array();
  for (const double nnz : o.nnz) {
    SyntheticShape shape;
    shape.input = o.input;
    shape.hidden = o.hidden;
    shape.gated = o.gated;
    shape.dtype = o.type();
    shape.activity.mean_nnz = nnz;
    shape.threshold = o.activation == "fat_relu" ? static_cast<double>(o.threshold) : 0.0;
    std::vector<SparseLayer> layers;
    for (int l = 0; l < o.layers; ++l) {
      // The inputs fit the first layer's directions only, so every layer shares its gate.
      layers.emplace_back(synthetic_layer(shape, o.seed));
      progress.update(done, "making weights");
    }
    for (const std::int64_t m : o.tokens) {
      // Small batches rotate over many tokens: one token again and again would keep its own few
      // rows of up and down in the caches.
      const std::int64_t slices = std::clamp<std::int64_t>(512 / m, 2, 128);
      at::Tensor inputs = synthetic_inputs(shape, slices * m, o.seed);
      const Case c{o, context, layers, inputs.view({slices, m, o.input}), m};
      const std::string note = fmt::format("{} tokens, {} non-zeros", m, nnz);
      results.push_back(run_case(c, nnz, peaks, [&] { progress.update(++done, note); }));
    }
  }
  progress.finish();
  print_results(o, results);
  nlohmann::json out = {{"hidden", o.input},
                        {"ffn", o.hidden},
                        {"gated", o.gated},
                        {"dtype", o.dtype},
                        {"activation", o.activation},
                        {"layers", o.layers},
                        {"device", "cpu"},
                        {"seed", o.seed},
                        {"cpu_tier", name_of(context.tier())},
                        {"results", results}};
  if (peaks) {
    out["peaks"] = {{"bytes_per_us", peaks->bytes_per_us}, {"flops_per_us", peaks->flops_per_us}};
  }
  o.write(out);
}

}  // namespace

void add_bench_ffn(CLI::App& bench) {
  auto o = std::make_shared<BenchFfnOptions>();
  CLI::App& c = add_command<BenchFfnOptions>(
      bench, "ffn",
      "One feed-forward layer: PyTorch dense (its fastest form) against sparse, in one process",
      "twell bench ffn --hidden 2048 --ffn 5632 --tokens 1,64,2048 --nnz 29 --json out.json", o,
      run);
  const CLI::Range size(std::int64_t{1}, std::int64_t{1} << 20);
  c.add_option("--hidden", o->input, "Width D of the model")->check(size)->capture_default_str();
  c.add_option("--ffn", o->hidden, "Hidden units H of the layer")
      ->check(size)
      ->capture_default_str();
  c.add_option("--tokens", o->tokens, "Tokens per call, a list")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  c.add_option("--nnz", o->nnz, "Mean non-zeros of a token, a list")
      ->delimiter(',')
      ->capture_default_str();
  c.add_flag("--gated,!--no-gated", o->gated, "With a gate (Llama, Qwen) or without");
  c.add_option("--dtype", o->dtype, "bf16 or f32")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  c.add_option("--activation", o->activation, "relu, relu_squared or fat_relu")
      ->check(CLI::IsMember({"relu", "relu_squared", "fat_relu"}))
      ->capture_default_str();
  c.add_option("--threshold", o->threshold, "Of fat_relu")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  c.add_option(
       "--layers", o->layers,
       "Copies of the layer in memory, used in turns; enough of them and no weight is still "
       "in a cache when its layer comes again")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  c.add_option("--repeats", o->repeats, "Timed runs of each side")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  c.add_option("--seconds", o->seconds, "Least length of a timed run")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  c.add_option("--seed", o->seed, "Of weights and inputs")->capture_default_str();
  c.add_flag("--peaks", o->peaks, "Also measure the machine's peaks and print the floor");
  c.add_option("--device", o->device, "cpu")->capture_default_str();
}

}  // namespace twell::cli
