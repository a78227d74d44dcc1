#include "measure/model_compare.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "device/device.h"
#include "engine/sampler.h"
#include "files/interrupt.h"
#include "measure/machine.h"
#include "measure/model_runner.h"
#include "measure/run_energy.h"
#include "twell/status.h"

namespace twell::lm {
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
  Profile seconds;
  Random random(0);
  run(0);
  if (!runner.set_profile(&seconds)) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  double total = 0;
  for (std::int64_t i = 1; total < 0.5; ++i) {
    io::check_interrupt();
    run(i);
    timed(&seconds, Piece::sampling, [&] {
      return sample_rows(runner.logits(), {.temperature = 0.8, .top_p = 0.95},
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
  DeviceRuntime& runtime = runtime_of(runner.device());
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

// All that a phase is measured with.
struct PhaseTask {
  Runners& runners;
  const std::vector<std::string>& names;
  std::size_t dense_sides;
  bool decoding;
  std::int64_t tokens;  // of a call
};

Speed speed_of(const PhaseTask& task, const std::vector<Timing>& timings, const RunEnergy& energy) {
  Speed speed;
  speed.tokens = task.tokens;
  speed.dense_sides = task.dense_sides;
  speed.energy_source = energy.source();
  for (std::size_t i = 0; i < timings.size(); ++i) {
    SideSpeed side{task.names[i], timings[i], std::nullopt, std::nullopt};
    if (const auto joules = energy.joules(i)) {
      side.mj = *joules * 1e3 / static_cast<double>(timings[i].calls * task.tokens);
    }
    speed.sides.push_back(std::move(side));
  }
  return speed;
}

Speed compare(const PhaseTask& task, MeasureOptions measure, const std::function<void()>& tick,
              const std::function<void(const Speed&)>& round) {
  DeviceRuntime& runtime = runtime_of(task.runners.back()->device());
  std::vector<Call> calls;
  for (const auto& runner : task.runners) {
    // The first call is to be of a token, not of its prompt.
    if (task.decoding) runner->prefill();
    calls.push_back(call_of(*runner, task.decoding));
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
  measure.after_round = [&](const std::vector<Timing>& so_far) {
    round(speed_of(task, so_far, energy));
  };
  Speed speed = speed_of(task, measure_in_turns(calls, measure, tick), energy);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    speed.sides[i].peak_bytes = peak_of(*task.runners[i], task.decoding);
  }
  if (runtime.is_cpu()) {
    speed.dense_pieces = profile(*task.runners[speed.fastest_dense()], task.decoding);
    speed.sparse_pieces = profile(*task.runners.back(), task.decoding);
  }
  speed.complete = true;
  return speed;
}

}  // namespace

nlohmann::json PieceShares::to_json() const {
  nlohmann::json out;
  for (std::size_t p = 0; p < share.size(); ++p) out[kPieceNames[p]] = share[p];
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
          {"complete", complete},
          {"runs", sides.front().timing.runs_us.size()},
          {"dense_tokens_per_s", tokens_per_s(dense())},
          {"sparse_tokens_per_s", tokens_per_s(sparse())},
          {"speedup", speedup()},
          {"speedup_eager",
           optional_json(eager() != nullptr ? std::optional(over_sparse(*eager())) : std::nullopt)},
          {"dense_impl", dense().name},
          {"energy_source", energy_source == nullptr ? nlohmann::json() : energy_source},
          {"sides", all}};
}

void require_tokens(const CompareOptions& options, std::int64_t tokens, std::int64_t context) {
  if (context >= options.length() && tokens >= options.tokens()) return;
  const std::string of = fmt::format(
      "{} tokens of a prompt{}", options.prompt_tokens,
      options.decode ? fmt::format(" and {} decoded", options.decode_tokens) : std::string());
  throw Error(ErrorKind::invalid_argument, "--batch, --prompt-tokens and --decode-tokens",
              context < options.length()
                  ? fmt::format("{} do not fit into the model's context of {}", of, context)
                  : fmt::format("{} sequences of {} are {} tokens, the text has {}",
                                options.sequences, of, options.tokens(), tokens));
}

Comparison compare_speed(const Sides& sides, std::span<const std::int64_t> tokens,
                         const CompareOptions& options,
                         const std::function<void(const std::string&)>& tick,
                         const std::function<void(const Comparison&)>& round) {
  require_tokens(options, std::ssize(tokens), sides.sparse->config().max_position_embeddings);
  const Batch batch{tokens, options.sequences, options.prompt_tokens,
                    options.decode ? options.decode_tokens : 0};
  Runners runners;
  std::vector<std::string> names;
  const auto add = [&](Model& model, const std::string& name, std::function<void()> enter) {
    const bool recorded = !model.device().is_cpu();
    runners.push_back(std::make_unique<ModelRunner>(model, batch, recorded, std::move(enter)));
    names.push_back(name);
  };
  for (const ModelSide& side : sides.dense) add(*side.model, side.name, side.enter);
  if (sides.eager != nullptr) {
    runners.push_back(std::make_unique<EagerRunner>(*sides.eager, batch));
    names.emplace_back("PyTorch eager");
  }
  add(*sides.sparse, "sparse", {});
  Comparison comparison;
  const auto measure = [&](std::optional<Speed>& out, const char* name, bool decoding,
                           std::int64_t of_sequence) {
    const auto so_far = [&](const Speed& speed) {
      out = speed;
      if (round) round(comparison);
    };
    so_far(compare(
        {runners, names, sides.dense.size(), decoding, options.sequences * of_sequence},
        options.measure, [&] { tick(name); }, so_far));
  };
  if (options.prefill) measure(comparison.prefill, "prefill", false, options.prompt_tokens);
  if (options.decode) measure(comparison.decode, "decode", true, 1);
  return comparison;
}

at::Tensor sample_logits(Model& model, std::span<const std::int64_t> tokens) {
  constexpr std::int64_t kRows = 64;
  const Chunk chunk{0, tokens};
  const at::Tensor hidden = model.hidden_states(std::span(&chunk, 1));
  const std::int64_t step = std::max<std::int64_t>(1, hidden.size(0) / kRows);
  return model.head(hidden.slice(0, 0, kRows * step, step)).to(at::kFloat);
}

double logits_error_bound(std::int64_t layers, at::ScalarType dtype) {
  const double unit = dtype == at::kFloat ? std::ldexp(1.0, -24) : std::ldexp(1.0, -9);
  return 2 * std::sqrt(2.0) * unit * std::sqrt(14.0 * static_cast<double>(layers) + 2);
}

}  // namespace twell::lm
