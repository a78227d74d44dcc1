#include "cli/model_compare.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/energy.h"
#include "cli/interrupt.h"
#include "cli/nvml.h"
#include "engine/sampler.h"
#include "models/device.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

using Side = std::function<void(std::int64_t)>;

// A model with a cache of its own.
struct Runner {
  Runner(lm::Model& m, std::span<const std::int64_t> all, const CompareOptions& options)
      : model(m),
        tokens(all),
        prompt(static_cast<std::size_t>(options.prompt_tokens)),
        decode(static_cast<std::size_t>(options.decode_tokens)),
        cache(m.make_cache(1, options.prompt_tokens + options.decode_tokens)) {}

  void step(std::size_t first, std::size_t count) {
    const lm::Chunk chunk{0, tokens.subspan(first, count)};
    const at::Tensor hidden = model.hidden_states(std::span(&chunk, 1), &cache);
    logits = model.head(hidden.slice(0, hidden.size(0) - 1));
  }
  void run_prefill() {
    cache.truncate(0);
    step(0, prompt);
  }
  // The i-th call decodes token i of the continuation, over and over.
  void run_decode(std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i) % decode;
    if (cache.length(0) < static_cast<std::int64_t>(prompt)) run_prefill();
    if (!model.device().is_cpu()) {
      run_recorded(prompt + at);
      return;
    }
    if (cache.length(0) != static_cast<std::int64_t>(prompt + at)) {
      cache.truncate(0, static_cast<std::int64_t>(prompt));
      for (std::size_t p = 0; p < at; ++p) step(prompt + p, 1);
    }
    step(prompt + at, 1);
  }

  // Token `at` at its position, by a step that is recorded once, as generation does it.
  void run_recorded(std::size_t at) {
    const auto run = [this] { decoded.copy_(model.head(model.step(token, position, cache))); };
    if (!token.defined()) {
      token = at::zeros({1}, at::TensorOptions(at::kLong).device(model.device()));
      position = at::zeros_like(token);
      decoded = at::empty_like(logits);
    }
    token.fill_(tokens[at]);
    position.fill_(static_cast<std::int64_t>(at));
    if (graph == nullptr) {
      run();  // what is made for the first time is not to be recorded
      graph = lm::runtime_of(model.device()).make_graph();
      graph->capture(run);
    }
    graph->replay();
  }

  lm::Model& model;
  std::span<const std::int64_t> tokens;
  std::size_t prompt, decode;
  lm::KvCache cache;
  at::Tensor logits;  // of the last token
  at::Tensor token, position, decoded;
  std::unique_ptr<lm::StepGraph> graph;
};

// Half a second of calls with timers; `run` is one of run_prefill and run_decode.
PieceShares profile(Runner& runner, const Side& run) {
  lm::Profile seconds;
  lm::Sampler sampler({.temperature = 0.8, .top_p = 0.95});
  run(0);
  runner.model.set_profile(&seconds);
  const auto begin = std::chrono::steady_clock::now();
  double total = 0;
  for (std::int64_t i = 1; total < 0.5; ++i) {
    check_interrupt();
    run(i);
    lm::timed(&seconds, lm::Piece::sampling, [&] {
      const at::Tensor row = runner.logits.to(at::kFloat).contiguous();
      return sampler.sample({row.const_data_ptr<float>(), static_cast<std::size_t>(row.numel())});
    });
    total = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  runner.model.set_profile(nullptr);
  PieceShares shares;
  shares.rest = 1;
  for (std::size_t p = 0; p < shares.share.size(); ++p) {
    shares.share[p] = seconds.seconds[p] / total;
    shares.rest -= shares.share[p];
  }
  return shares;
}

// Millijoules a token over at least half a second of calls, of the GPU where one does the work.
template <class Meter>
std::optional<double> energy_of(Meter& meter, const Side& side, std::int64_t tokens,
                                const MeasureOptions& measure) {
  if (!meter.available()) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t calls = 0;
  if (measure.settle) measure.settle();
  meter.start();
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500)) {
    side(calls++);
    // A queue of calls would go on after the half second.
    if (calls % 8 == 0 && measure.settle) measure.settle();
  }
  if (measure.settle) measure.settle();
  const auto joules = meter.joules();
  if (!joules) return std::nullopt;
  return *joules * 1e3 / static_cast<double>(calls * tokens);
}

std::optional<double> energy_per_token(at::Device device, const Side& side, std::int64_t tokens,
                                       const MeasureOptions& measure) {
  if (device.is_cpu()) {
    EnergyMeter meter;
    return energy_of(meter, side, tokens, measure);
  }
  GpuEnergyMeter meter(lm::runtime_of(device).uuid());
  return energy_of(meter, side, tokens, measure);
}

SpeedPair compare(at::Device device, const std::vector<Side>& dense,
                  std::span<const DenseSide> names, const Side& sparse, std::int64_t tokens,
                  const MeasureOptions& measure, const std::function<void()>& tick) {
  std::vector<Side> sides = dense;
  sides.push_back(sparse);
  std::vector<Timing> timings = measure_in_turns(sides, measure, tick);
  SpeedPair pair;
  pair.tokens = tokens;
  pair.sparse = timings.back();
  timings.pop_back();
  const auto best =
      std::min_element(timings.begin(), timings.end(),
                       [](const Timing& a, const Timing& b) { return a.median_us < b.median_us; });
  const auto index = static_cast<std::size_t>(best - timings.begin());
  pair.dense = *best;
  pair.dense_impl = names[index].name;
  pair.speedup = pair.dense.median_us / pair.sparse.median_us;
  pair.dense_mj = energy_per_token(device, dense[index], tokens, measure);
  pair.sparse_mj = energy_per_token(device, sparse, tokens, measure);
  lm::DeviceRuntime& runtime = lm::runtime_of(device);
  const auto peak = [&](const Side& side) {
    runtime.synchronize();
    runtime.reset_peak_bytes();
    side(0);
    runtime.synchronize();
    return runtime.peak_bytes();
  };
  pair.peak = {peak(dense[index]), peak(sparse)};
  return pair;
}

nlohmann::json optional_json(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

}  // namespace

nlohmann::json PieceShares::to_json() const {
  nlohmann::json out;
  for (std::size_t p = 0; p < share.size(); ++p) out[lm::kPieceNames[p]] = share[p];
  out["rest"] = rest;
  return out;
}

nlohmann::json SpeedPair::to_json() const {
  return {{"tokens", tokens},
          {"dense_tokens_per_s", dense_tokens_per_s()},
          {"sparse_tokens_per_s", sparse_tokens_per_s()},
          {"speedup", speedup},
          {"dense_us", dense.median_us},
          {"dense_us_min", dense.min_us},
          {"dense_us_max", dense.max_us},
          {"dense_impl", dense_impl},
          {"sparse_us", sparse.median_us},
          {"sparse_us_min", sparse.min_us},
          {"sparse_us_max", sparse.max_us},
          {"dense_energy_mj_per_token", optional_json(dense_mj)},
          {"sparse_energy_mj_per_token", optional_json(sparse_mj)}};
}

Comparison compare_speed(std::span<const DenseSide> dense, lm::Model& sparse,
                         std::span<const std::int64_t> tokens, const CompareOptions& options,
                         const std::function<void(const std::string&)>& tick) {
  const std::int64_t needed = options.prompt_tokens + options.decode_tokens;
  const std::int64_t context = sparse.config().max_position_embeddings;
  if (static_cast<std::int64_t>(tokens.size()) < needed || context < needed) {
    throw Error(ErrorKind::invalid_argument, "--prompt-tokens and --decode-tokens",
                fmt::format("ask for {} tokens, the text has {} and the model's context is {}",
                            needed, tokens.size(), context));
  }
  std::vector<Runner> runners;
  for (const DenseSide& side : dense) runners.emplace_back(*side.model, tokens, options);
  Runner sparse_runner(sparse, tokens, options);

  std::vector<Side> prefill, decode;
  for (Runner& r : runners) {
    prefill.emplace_back([&r](std::int64_t) { r.run_prefill(); });
    decode.emplace_back([&r](std::int64_t i) { r.run_decode(i); });
  }
  const at::Device device = sparse.device();
  CompareOptions settled = options;
  if (!device.is_cpu()) settled.measure.settle = [&] { lm::runtime_of(device).synchronize(); };
  Comparison comparison;
  comparison.prefill = compare(
      device, prefill, dense, [&](std::int64_t) { sparse_runner.run_prefill(); },
      options.prompt_tokens, settled.measure, [&] { tick("prefill"); });
  comparison.decode = compare(
      device, decode, dense, [&](std::int64_t i) { sparse_runner.run_decode(i); }, 1,
      settled.measure, [&] { tick("decode"); });
  // All models are loaded at once: what a side used is less the weights of the others.
  for (SpeedPair* pair : {&comparison.prefill, &comparison.decode}) {
    std::int64_t all = sparse.weight_bytes();
    for (const DenseSide& side : dense) all += side.model->weight_bytes();
    for (const DenseSide& side : dense) {
      if (side.name == pair->dense_impl) pair->peak.dense -= all - side.model->weight_bytes();
    }
    pair->peak.sparse -= all - sparse.weight_bytes();
  }
  if (!device.is_cpu()) return comparison;
  for (const bool decoding : {false, true}) {
    SpeedPair& pair = decoding ? comparison.decode : comparison.prefill;
    const auto shares = [&](Runner& r) {
      return profile(r, [&](std::int64_t i) { decoding ? r.run_decode(i) : r.run_prefill(); });
    };
    for (std::size_t side = 0; side < dense.size(); ++side) {
      if (dense[side].name == pair.dense_impl) pair.dense_pieces = shares(runners[side]);
    }
    pair.sparse_pieces = shares(sparse_runner);
  }
  return comparison;
}

at::Tensor sample_logits(lm::Model& model, std::span<const std::int64_t> tokens) {
  constexpr std::int64_t kRows = 64;
  const lm::Chunk chunk{0, tokens};
  const at::Tensor hidden = model.hidden_states(std::span(&chunk, 1));
  const std::int64_t step = std::max<std::int64_t>(1, hidden.size(0) / kRows);
  return model.head(hidden.slice(0, 0, kRows * step, step)).to(at::kFloat);
}

double logits_error_bound(std::int64_t layers, at::ScalarType dtype) {
  const double unit = dtype == at::kFloat ? std::ldexp(1.0, -24) : std::ldexp(1.0, -9);
  return 2 * std::sqrt(2.0) * unit * std::sqrt(14.0 * static_cast<double>(layers) + 2);
}

}  // namespace twell::cli
