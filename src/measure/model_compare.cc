#include "measure/model_compare.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "choice/device.h"
#include "engine/sampler.h"
#include "measure/interrupt.h"
#include "measure/machine.h"
#include "measure/model_runner.h"
#include "measure/run_energy.h"
#include "twell/status.h"

namespace twell::measure {
namespace {

using Call = std::function<void(std::int64_t)>;
using Runners = std::vector<std::unique_ptr<Runner>>;

Call call_of(Runner& runner, bool decoding) {
  if (decoding) return [&runner](std::int64_t i) { runner.decode(i); };
  return [&runner](std::int64_t) { runner.prefill(); };
}

// Half a second of calls with timers.
std::optional<PieceShares> profile(Runner& runner, bool decoding) {
  const Call run = call_of(runner, decoding);
  lm::Profile seconds;
  lm::Random random(0);
  run(0);
  if (!runner.set_profile(&seconds)) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  double total = 0;
  for (std::int64_t i = 1; total < 0.5; ++i) {
    check_interrupt();
    run(i);
    lm::timed(&seconds, lm::Piece::sampling, [&] {
      return lm::sample_rows(runner.logits(), {.temperature = 0.8, .top_p = 0.95},
                             at::full({runner.logits().size(0)}, random.uniform(), at::kDouble));
    });
    total = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  runner.set_profile(nullptr);
  PieceShares shares;
  shares.rest = 1;
  for (std::size_t p = 0; p < shares.share.size(); ++p) {
    shares.share[p] = seconds.seconds[p] / total;
    shares.rest -= shares.share[p];
  }
  return shares;
}

// What the runner has before a call, and what the call adds to that at most.
std::optional<double> peak_of(Runner& runner, bool decoding) {
  const Call run = call_of(runner, decoding);
  runner.settle_memory();
  const auto own = static_cast<double>(runner.own_bytes());
  lm::DeviceRuntime& runtime = lm::runtime_of(runner.device());
  if (runtime.is_cpu()) {
    const auto memory = peak_memory_of([&run] { run(0); });
    return memory ? std::optional(own + memory->added()) : std::nullopt;
  }
  runtime.synchronize();
  runtime.reset_peak_bytes();
  const std::int64_t before = runtime.peak_bytes();
  run(0);
  runtime.synchronize();
  return own + static_cast<double>(runtime.peak_bytes() - before);
}

Speed compare(Runners& runners, std::vector<std::string> names, std::size_t dense_sides,
              bool decoding, std::int64_t tokens, MeasureOptions measure,
              const std::function<void()>& tick) {
  lm::DeviceRuntime& runtime = lm::runtime_of(runners.back()->device());
  std::vector<Call> calls;
  for (const auto& runner : runners) {
    // The first call is to be of a token, not of its prompt.
    if (decoding) runner->prefill();
    calls.push_back(call_of(*runner, decoding));
  }
  RunEnergy energy(runtime.uuid(), calls.size());
  energy.watch(measure);
  if (!runtime.is_cpu()) {
    measure.settle = [&runtime] { runtime.synchronize(); };
    // A GPU brings its figures up to date every 20 to 100 ms.
    if (energy.source() != nullptr) {
      measure.min_seconds = std::max(measure.min_seconds, kGpuEnergySeconds / measure.repeats);
    }
  }
  const std::vector<Timing> timings = measure_in_turns(calls, measure, tick);
  Speed speed;
  speed.tokens = tokens;
  speed.dense_sides = dense_sides;
  speed.energy_source = energy.source();
  for (std::size_t i = 0; i < runners.size(); ++i) {
    SideSpeed side{std::move(names[i]), timings[i], std::nullopt, peak_of(*runners[i], decoding)};
    if (const auto joules = energy.joules(i)) {
      side.mj = *joules * 1e3 / static_cast<double>(timings[i].calls * tokens);
    }
    speed.sides.push_back(std::move(side));
  }
  if (runtime.is_cpu()) {
    speed.dense_pieces = profile(*runners[speed.fastest_dense()], decoding);
    speed.sparse_pieces = profile(*runners.back(), decoding);
  }
  return speed;
}

}  // namespace

nlohmann::json PieceShares::to_json() const {
  nlohmann::json out;
  for (std::size_t p = 0; p < share.size(); ++p) out[lm::kPieceNames[p]] = share[p];
  out["rest"] = rest;
  return out;
}

std::size_t Speed::fastest_dense() const {
  const auto fastest =
      std::min_element(sides.begin(), sides.begin() + static_cast<std::ptrdiff_t>(dense_sides),
                       [](const SideSpeed& a, const SideSpeed& b) {
                         return a.timing.median_us < b.timing.median_us;
                       });
  return static_cast<std::size_t>(fastest - sides.begin());
}

const SideSpeed* Speed::eager() const {
  return sides.size() > dense_sides + 1 ? &sides[dense_sides] : nullptr;
}

double Speed::over_sparse(const SideSpeed& side) const {
  return side.timing.median_us / sparse().timing.median_us;
}

double Speed::tokens_per_s(const SideSpeed& side) const {
  return static_cast<double>(tokens) * 1e6 / side.timing.median_us;
}

nlohmann::json Speed::to_json() const {
  nlohmann::json all = nlohmann::json::array();
  for (const SideSpeed& side : sides) {
    all.push_back({{"name", side.name},
                   {"us", side.timing.median_us},
                   {"us_min", side.timing.min_us},
                   {"us_max", side.timing.max_us},
                   {"cold_us", side.timing.first_us},
                   {"tokens_per_ms", tokens_per_s(side) / 1e3},
                   {"energy_mj_per_token", optional_json(side.mj)},
                   {"peak_bytes", optional_json(side.peak_bytes)}});
  }
  return {{"tokens", tokens},
          {"dense_tokens_per_s", tokens_per_s(dense())},
          {"sparse_tokens_per_s", tokens_per_s(sparse())},
          {"speedup", speedup()},
          {"speedup_eager",
           optional_json(eager() != nullptr ? std::optional(over_sparse(*eager())) : std::nullopt)},
          {"dense_impl", dense().name},
          {"energy_source", energy_source == nullptr ? nlohmann::json() : energy_source},
          {"sides", all}};
}

Comparison compare_speed(const Sides& sides, std::span<const std::int64_t> tokens,
                         const CompareOptions& options,
                         const std::function<void(const std::string&)>& tick,
                         const std::function<void(const Comparison&)>& done) {
  const std::int64_t length = options.prompt_tokens + options.decode_tokens;
  const std::int64_t context = sides.sparse->config().max_position_embeddings;
  if (static_cast<std::int64_t>(tokens.size()) < options.tokens() || context < length) {
    throw Error(ErrorKind::invalid_argument, "--prompt-tokens and --decode-tokens",
                fmt::format("ask for {} sequences of {} tokens, the text has {} tokens and the "
                            "model's context is {}",
                            options.sequences, length, tokens.size(), context));
  }
  const Batch batch{tokens, options.sequences, options.prompt_tokens, options.decode_tokens};
  Runners runners;
  std::vector<std::string> names;
  const auto add = [&](lm::Model& model, const std::string& name, std::function<void()> enter) {
    const bool recorded = !model.device().is_cpu();
    runners.push_back(std::make_unique<ModelRunner>(model, batch, recorded, std::move(enter)));
    names.push_back(name);
  };
  for (const DenseSide& side : sides.dense) add(*side.model, side.name, side.enter);
  if (sides.eager != nullptr) {
    runners.push_back(std::make_unique<EagerRunner>(*sides.eager, batch));
    names.emplace_back("PyTorch eager");
  }
  add(*sides.sparse, "sparse", {});
  Comparison comparison;
  if (options.prefill) {
    comparison.prefill = compare(runners, names, sides.dense.size(), false,
                                 options.sequences * options.prompt_tokens, options.measure,
                                 [&] { tick("prefill"); });
    if (done) done(comparison);
  }
  if (options.decode) {
    comparison.decode = compare(runners, names, sides.dense.size(), true, options.sequences,
                                options.measure, [&] { tick("decode"); });
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

}  // namespace twell::measure
