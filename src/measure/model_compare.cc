#include "measure/model_compare.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "choice/device.h"
#include "engine/sampler.h"
#include "measure/interrupt.h"
#include "measure/machine.h"
#include "measure/model_runner.h"
#include "measure/run_energy.h"
#include "twell/status.h"

namespace twell::measure {
namespace {

using Side = std::function<void(std::int64_t)>;

Side side_of(ModelRunner& runner, bool decoding) {
  if (decoding) return [&runner](std::int64_t i) { runner.decode(i); };
  return [&runner](std::int64_t) { runner.prefill(); };
}

// Half a second of calls with timers.
PieceShares profile(ModelRunner& runner, bool decoding) {
  const Side run = side_of(runner, decoding);
  lm::Profile seconds;
  lm::Random random(0);
  run(0);
  runner.model().set_profile(&seconds);
  const auto begin = std::chrono::steady_clock::now();
  double total = 0;
  for (std::int64_t i = 1; total < 0.5; ++i) {
    check_interrupt();
    run(i);
    lm::timed(&seconds, lm::Piece::sampling, [&] {
      return lm::sample_rows(runner.logits(), {.temperature = 0.8, .top_p = 0.95},
                             at::full({1}, random.uniform(), at::kDouble));
    });
    total = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  runner.model().set_profile(nullptr);
  PieceShares shares;
  shares.rest = 1;
  for (std::size_t p = 0; p < shares.share.size(); ++p) {
    shares.share[p] = seconds.seconds[p] / total;
    shares.rest -= shares.share[p];
  }
  return shares;
}

// The most memory of the device in one call, less what the other models and their caches take.
std::int64_t peak_of(ModelRunner& runner, bool decoding, const std::vector<ModelRunner>& all) {
  lm::DeviceRuntime& runtime = lm::runtime_of(runner.model().device());
  // The memory of a recording is not counted in its replays, that of a step before one is.
  runner.drop_recording();
  runtime.synchronize();
  runtime.reset_peak_bytes();
  side_of(runner, decoding)(0);
  runtime.synchronize();
  std::int64_t bytes = runtime.peak_bytes() + runner.own_bytes();
  for (const ModelRunner& other : all) bytes -= other.own_bytes();
  return bytes;
}

// Of all runners the last is the sparse one.
SpeedPair compare(std::vector<ModelRunner>& runners, std::span<const DenseSide> names,
                  bool decoding, std::int64_t tokens, MeasureOptions measure,
                  const std::function<void()>& tick) {
  const at::Device device = runners.back().model().device();
  lm::DeviceRuntime& runtime = lm::runtime_of(device);
  std::vector<Side> sides;
  for (ModelRunner& runner : runners) sides.push_back(side_of(runner, decoding));
  RunEnergy energy(runtime.uuid(), sides.size());
  energy.watch(measure);
  if (!device.is_cpu()) {
    measure.settle = [&runtime] { runtime.synchronize(); };
    // A GPU brings its figures up to date every 20 to 100 ms.
    if (energy.source() != nullptr) {
      measure.min_seconds = std::max(measure.min_seconds, kGpuEnergySeconds / measure.repeats);
    }
  }
  std::vector<Timing> timings = measure_in_turns(sides, measure, tick);
  SpeedPair pair;
  pair.tokens = tokens;
  pair.sparse = timings.back();
  const std::size_t last = timings.size() - 1;
  const auto best =
      std::min_element(timings.begin(), timings.end() - 1,
                       [](const Timing& a, const Timing& b) { return a.median_us < b.median_us; });
  const auto index = static_cast<std::size_t>(best - timings.begin());
  pair.dense = *best;
  pair.dense_impl = names[index].name;
  pair.speedup = pair.dense.median_us / pair.sparse.median_us;
  const auto millijoules = [&](std::size_t side) -> std::optional<double> {
    const auto joules = energy.joules(side);
    if (!joules) return std::nullopt;
    return *joules * 1e3 / static_cast<double>(timings[side].calls * tokens);
  };
  pair.dense_mj = millijoules(index);
  pair.sparse_mj = millijoules(last);
  pair.energy_source = energy.source();
  if (device.is_cpu()) {
    pair.dense_pieces = profile(runners[index], decoding);
    pair.sparse_pieces = profile(runners.back(), decoding);
  } else {
    pair.peak = {peak_of(runners[index], decoding, runners),
                 peak_of(runners.back(), decoding, runners)};
  }
  return pair;
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
  std::vector<ModelRunner> runners;
  const auto add = [&](lm::Model& model) {
    runners.emplace_back(model, tokens, options.prompt_tokens, options.decode_tokens,
                         !model.device().is_cpu());
  };
  for (const DenseSide& side : dense) add(*side.model);
  add(sparse);
  Comparison comparison;
  comparison.prefill = compare(runners, dense, false, options.prompt_tokens, options.measure,
                               [&] { tick("prefill"); });
  comparison.decode = compare(runners, dense, true, 1, options.measure, [&] { tick("decode"); });
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

}  // namespace twell::measure
