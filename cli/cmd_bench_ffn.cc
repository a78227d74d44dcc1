// twell bench ffn: one feed-forward layer, PyTorch's dense path against the sparse one.
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <utility>

#include "cli/bench_ffn_print.h"
#include "cli/json_out.h"
#include "cli/progress.h"
#include "decoder/sparse_operators.h"
#include "device/device.h"
#include "files/activity_trace.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/interrupt.h"
#include "measure/ffn_bench.h"
#include "measure/train_bench.h"
#include "synth/trace_layer.h"

namespace twell::cli {

lm::ActivationChoice BenchFfnOptions::choice() const {
  return {*io::hidden_act_of(activation), threshold};
}

at::ScalarType BenchFfnOptions::type() const {
  return dtype == "bf16" ? at::kBFloat16 : dtype == "f16" ? at::kHalf : at::kFloat;
}

lm::SyntheticShape BenchFfnOptions::shape(double nnz_mean) const {
  lm::SyntheticShape shape;
  shape.width = width;
  shape.neurons = neurons;
  shape.gated = gated;
  shape.biases = biases;
  shape.dtype = type();
  shape.activity.mean_nnz = nnz_mean;
  shape.threshold = lm::sparse_activation(choice()).kept_above();
  return shape;
}

namespace {

constexpr std::int64_t kWidth = 2048;

void print_results(const BenchFfnOptions& o, const nlohmann::json& results) {
  if (o.train) {
    print_train_results(o, results);
  } else {
    print_ffn_results(o, results);
  }
}

// Cases one after the other, and what is reported of all of them.
struct Runs {
  Runs(const BenchFfnOptions& options, const std::optional<lm::Peaks>& p, std::size_t count)
      : o(options),
        peaks(p),
        cases(static_cast<std::int64_t>(count)),
        progress("measuring", cases * (3 * options.repeats + 1)) {}

  // inputs [slices * m, D]; `more` is reported with what is measured.
  void add(const std::vector<lm::BenchLayer>& layers, const at::Tensor& inputs, std::int64_t m,
           double nnz, const std::string& note,
           const nlohmann::json& more = nlohmann::json::object()) {
    lm::MeasureOptions measure;
    measure.repeats = o.repeats;
    measure.min_seconds = o.seconds;
    measure.alive = [&] { progress.update(done, note); };
    const auto tick = [&] { progress.update(++done, note); };
    nlohmann::json result;
    if (o.train) {
      result = lm::run_train_case(
          {o.shape(nnz), o.choice(), layers.front().source, inputs.narrow(0, 0, m), nnz, measure},
          tick);
    } else {
      const lm::FfnCase c{o.shape(nnz), o.choice(), layers, inputs.view({-1, m, o.width}),
                          nnz,          measure};
      result = lm::run_ffn_case(c, peaks, tick);
    }
    result.update(more);
    const std::lock_guard lock(mutex_);
    results.push_back(std::move(result));
    o.write_so_far(all_results());
  }

  void finish(const nlohmann::json& more) {
    print_ffn_implementations(o, results);
    int fewest = o.repeats;
    for (const auto& r : results) fewest = std::min(fewest, r["runs"].get<int>());
    o.say_lines(
        "Times are medians of {} in turns{}; errors are against fp64, relative to the largest "
        "output of the token.",
        counted(o.repeats, "run"),
        fewest < o.repeats ? fmt::format(", or of {} where they take long", fewest)
                           : std::string());
    nlohmann::json out = all_results();
    out.update(more);
    if (!o.chart.empty()) {
      io::write_file_atomically(o.chart, ffn_chart(o, results));
      o.say("Chart: {}\n", o.chart);
    }
    o.write(out);
  }

  nlohmann::json all_results() const {
    nlohmann::json out = {{"width", o.width},   {"neurons", o.neurons},
                          {"gated", o.gated},   {"biases", o.biases},
                          {"dtype", o.dtype},   {"activation", o.activation},
                          {"layers", o.layers}, {"device", o.device_name},
                          {"seed", o.seed},     {"cpu_tier", name_of(default_cpu_tier())},
                          {"results", results}};
    if (peaks) {
      out["peaks"] = {{"bytes_per_us", peaks->bytes_per_us}, {"flops_per_us", peaks->flops_per_us}};
    }
    return out;
  }

  // Where the run is stopped.
  void print_so_far() {
    const std::lock_guard lock(mutex_);
    if (results.empty()) return;
    progress.clear();
    print_results(o, results);
    o.say("{} of {} cases were measured\n", results.size(), cases);
  }

  const BenchFfnOptions& o;
  const std::optional<lm::Peaks>& peaks;
  std::int64_t cases;
  Progress progress;
  std::int64_t done = 0;
  nlohmann::json results = nlohmann::json::array();

 private:
  std::mutex mutex_;  // of the results
  io::LastWords last_words_{[this] { print_so_far(); }};
};

// The recorded patterns of one layer after the other.
void run_trace(BenchFfnOptions& o, const std::optional<lm::Peaks>& peaks) {
  const io::ActivityTrace trace(o.trace);
  const auto layers = static_cast<std::int64_t>(trace.header().layers);
  const std::int64_t first = o.trace_layer.value_or(0);
  const std::int64_t last = o.trace_layer.value_or(layers - 1);
  if (last >= layers) {
    io::fail_argument("--trace-layer", "{} has {} layers, asked for {}", o.trace, layers, last);
  }
  Runs runs(o, peaks, o.tokens.size() * static_cast<std::size_t>(last - first + 1));
  std::int64_t replayed = 0;
  for (std::int64_t l = first; l <= last; ++l) {
    const io::ActivityRows rows =
        trace.read(static_cast<std::uint32_t>(l), static_cast<std::uint64_t>(o.width));
    runs.progress.update(runs.done, "making weights");
    const std::vector<lm::BenchLayer> layer(
        static_cast<std::size_t>(o.layers),
        lm::BenchLayer(lm::traced_layer(o.shape(0), rows, o.seed), o.choice(), o.device));
    replayed = static_cast<std::int64_t>(rows.rows());
    const double mean = static_cast<double>(rows.neurons.size()) / static_cast<double>(replayed);
    for (const std::int64_t m : o.tokens) {
      const at::Tensor inputs =
          lm::traced_inputs(o.shape(0), replayed, lm::input_batches(m) * m).to(o.device);
      runs.add(layer, inputs, m, mean, fmt::format("{}, layer {}", counted(m, "token"), l),
               {{"trace_layer", l}});
    }
  }
  runs.progress.finish();
  print_results(o, runs.results);
  o.say("Replayed {} of each layer of {}\n", counted(replayed, "token"), o.trace);
  runs.finish({{"trace", o.trace}, {"trace_tokens", replayed}});
}

// What --trace and --grid stand for.
void expand(BenchFfnOptions& o) {
  if (!o.trace.empty()) {
    const io::ActivityTraceHeader header = io::ActivityTrace(o.trace).header();
    if (header.tokens == 0) {
      io::fail_file(o.trace, "holds no tokens; record some text");
    }
    o.neurons = header.neurons;
    o.gated = header.gated;
    if (o.width == 0) o.width = header.width;
  }
  if (o.width == 0) o.width = kWidth;
  if (!o.grid.empty()) {
    o.train = o.train || o.grid == "train";
    o.tokens = o.train ? std::vector<std::int64_t>{512, 2048, 8192}
                       : std::vector<std::int64_t>{1, 8, 64, 512, 2048};
    o.nnz.clear();
    // 0, 29, 113, 282, 563 of 5632, and on to all of them.
    for (const double density :
         {0.0, 0.00515, 0.02006, 0.05007, 0.09996, 0.2, 0.4, 0.6, 0.8, 1.0}) {
      o.nnz.push_back(std::round(density * static_cast<double>(o.neurons)));
    }
  }
}

void check_device(const BenchFfnOptions& o) {
  const bool on_cpu = o.device.is_cpu();
  if (o.dtype == (on_cpu ? "f16" : "f32")) {
    throw Error(ErrorKind::unsupported, "--dtype " + o.dtype,
                on_cpu ? "is for --device cuda; use bf16 or f32"
                       : "has no sparse path on a GPU; use bf16 or f16");
  }
  if (!on_cpu && o.biases) {
    io::fail_unsupported("--biases", "has no sparse path on a GPU; leave it out");
  }
  if (!on_cpu && o.peaks) {
    io::fail_unsupported("--peaks", "measures the CPU; leave it out");
  }
}

void run(BenchFfnOptions& o) {
  check_device(o);
  expand(o);
  for (const double k : o.nnz) {
    if (!(k >= 0 && k <= static_cast<double>(o.neurons))) {
      io::fail_argument("--nnz", "{} is not between 0 and --neurons {}", k, o.neurons);
    }
  }
  lm::keep_freed_memory();
  const c10::InferenceMode no_grad;
  o.say_lines("One {}gated layer{}, D = {}, H = {}, {}, {}, {}", o.gated ? "" : "non-",
              o.biases ? " with biases" : "", o.width, o.neurons, o.dtype, o.activation,
              o.device.is_cpu() ? fmt::format("{}, {} instructions", counted(o.threads, "thread"),
                                              name_of(default_cpu_tier()))
                                : lm::runtime_of(o.device).describe());
  std::optional<lm::Peaks> peaks;
  if (o.peaks) {
    peaks = lm::measure_peaks(o.type());
    o.say("Memory {:.1f} GB/s, GEMM {:.2f} TFLOP/s\n", peaks->bytes_per_us / 1e3,
          peaks->flops_per_us / 1e6);
  }

  if (!o.trace.empty()) {
    run_trace(o, peaks);
    return;
  }
  Runs runs(o, peaks, o.tokens.size() * o.nnz.size());
  for (const double nnz : o.nnz) {
    const lm::SyntheticShape shape = o.shape(nnz);
    std::vector<lm::BenchLayer> layers;
    for (int l = 0; l < o.layers; ++l) {
      runs.progress.update(runs.done, "making weights");
      // The inputs fit the first layer's directions only, so every layer shares its gate.
      layers.emplace_back(lm::synthetic_layer(shape, o.seed), o.choice(), o.device);
    }
    for (const std::int64_t m : o.tokens) {
      const at::Tensor inputs =
          lm::synthetic_inputs(shape, lm::input_batches(m) * m, o.seed).to(o.device);
      runs.add(layers, inputs, m, nnz, fmt::format("{}, {} non-zeros", counted(m, "token"), nnz));
    }
  }
  runs.progress.finish();
  if (o.grid.empty()) {
    print_results(o, runs.results);
  } else {
    print_ffn_grid(o, runs.results);
  }
  runs.finish(nlohmann::json::object());
}

}  // namespace

void add_bench_ffn(CLI::App& bench) {
  auto [c, o] = add_command<BenchFfnOptions>(
      bench, "ffn",
      "One feed-forward layer: PyTorch dense (its fastest variant) against sparse, in one process",
      "twell bench ffn --width 2048 --neurons 5632 --tokens 1,64,2048 --nnz 29 --json out.json",
      run);
  c.add_option("--width", o->width,
               fmt::format("Width D of a token (default: {}, or that of the trace)", kWidth))
      ->check(kCounts)
      ->default_str("");
  CLI::Option* neurons =
      c.add_option("--neurons", o->neurons, "Neurons H of the layer")->check(kCounts);
  CLI::Option* tokens = c.add_option("--tokens", o->tokens, "Tokens per call, a list")
                            ->delimiter(',')
                            ->check(kCounts);
  CLI::Option* nnz =
      c.add_option("--nnz", o->nnz, "Neurons that fire for a token, mean; a list")->delimiter(',');
  CLI::Option* gated =
      c.add_flag("--gated,!--no-gated", o->gated, "With a gate (Llama, Qwen) or without");
  CLI::Option* biases =
      c.add_flag("--biases", o->biases, "With biases of all projections, on a CPU");
  CLI::Option* grid = c.add_option("--grid", o->grid,
                                   "cpu: 1 to 2048 tokens at densities from none to all neurons, "
                                   "as a table of non-zeros by tokens; train: forward and "
                                   "backward of 512 to 8192 tokens")
                          ->check(CLI::IsMember({"cpu", "train"}))
                          ->excludes(tokens)
                          ->excludes(nnz);
  CLI::Option* trace =
      c.add_option(
           "--trace", o->trace,
           "Replay the activity that twell stats --trace recorded, instead of a synthetic one. The "
           "weights are made so that the first D tokens fire exactly the neurons they fired; "
           "larger batches repeat these tokens")
          ->type_name("FILE")
          ->excludes(nnz)
          ->excludes(neurons)
          ->excludes(gated)
          ->excludes(biases)
          ->excludes(grid);
  c.add_option("--trace-layer", o->trace_layer, "Only this layer of the trace")
      ->check(kZeroOrMore)
      ->needs(trace);
  o->writes(
      c.add_option("--chart", o->chart, "Also draw time against density, for each number of tokens")
          ->type_name("FILE.svg"),
      OutputKind::chart);
  c.add_option("--dtype", o->dtype, "bf16 or f32; on a GPU bf16 or f16")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}));
  c.add_option("--activation", o->activation, "Activation, one that yields zeros")
      ->check(CLI::IsMember(activation_names(true)));
  c.add_option("--threshold", o->threshold, "Threshold of fat_relu")->check(kZeroOrMore);
  c.add_option(
       "--layers", o->layers,
       "Copies of the layer in memory, used in turns; with enough of them no weight stays in a "
       "cache until its layer comes again")
      ->check(in_range(1, 64));
  c.add_option("--repeats", o->repeats, "Timed runs of each side")->check(in_range(1, 1000));
  c.add_option("--seconds", o->seconds, "Shortest timed run, in seconds")
      ->check(in_range(0.001, 60.0));
  add_seed_option(c, o->seed, "Seed of weights and inputs");
  c.add_flag("--train", o->train, "Forward and backward, against PyTorch's autograd");
  c.add_flag("--peaks", o->peaks, "Also measure the machine's peaks and print the floor");
  add_device_option(c, *o);
}

}  // namespace twell::cli
