#include "measure/step_bench.h"

#include <ATen/Context.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "decoder/profile.h"
#include "device/device.h"
#include "device/found_memory.h"
#include "files/interrupt.h"
#include "measure/model_compare.h"
#include "measure/run_energy.h"
#include "measure/timing.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

// PyTorch's fastest kernels, where a trainer wants those that repeat their bits.
class AnyOrder {
 public:
  AnyOrder() : before_(at::globalContext().deterministicAlgorithms()) { set(false); }
  ~AnyOrder() { set(before_); }
  AnyOrder(const AnyOrder&) = delete;
  AnyOrder& operator=(const AnyOrder&) = delete;

 private:
  static void set(bool deterministic) {
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  }
  bool before_;
};

// A side at work.
struct Contender {
  StepSide* side;
  std::function<void()> step;
};

std::optional<double> bytes_of(const StepSide& side, double PeakMemory::*bytes) {
  return side.memory ? std::optional((*side.memory).*bytes) : std::nullopt;
}

nlohmann::json share_json(const StepSide& side) {
  if (!side.times) return nullptr;
  const StepTimes& t = *side.times;
  const double all = t.whole;
  return {{"feed_forward", t.feed_forward / all},
          {"head_and_loss", t.head_and_loss / all},
          {"optimizer", t.optimizer / all},
          {"rest", (all - t.feed_forward - t.head_and_loss - t.optimizer) / all}};
}

nlohmann::json side_json(const StepSide& side, double tokens) {
  const double us = median(side.seconds) * 1e6;
  const auto [low, high] = std::ranges::minmax(side.seconds);
  std::optional<double> mj;
  if (side.joules) mj = *side.joules * 1e3 / (static_cast<double>(side.steps) * tokens);
  return {{"name", side.name},
          {"micro_batch", side.micro_batch},
          {"step_us", us},
          {"step_us_min", low * 1e6},
          {"step_us_max", high * 1e6},
          {"tokens_per_s", tokens * 1e6 / us},
          {"tokens_per_ms", tokens * 1e3 / us},
          {"energy_mj_per_token", optional_json(mj)},
          {"base_bytes", optional_json(bytes_of(side, &PeakMemory::before))},
          {"peak_bytes", optional_json(bytes_of(side, &PeakMemory::peak))},
          {"share", share_json(side)}};
}

std::optional<PeakMemory> memory_of(const std::function<void()>& step, DeviceRuntime& runtime,
                                    double foreign) {
  std::optional<PeakMemory> memory;
  if (runtime.is_cpu()) {
    memory = peak_memory_of(step);
  } else {
    runtime.synchronize();
    runtime.reset_peak_bytes();
    const auto before = static_cast<double>(runtime.peak_bytes());
    step();
    runtime.synchronize();
    memory = PeakMemory{before, static_cast<double>(runtime.peak_bytes())};
  }
  if (memory) memory->before -= foreign;
  if (memory) memory->peak -= foreign;
  return memory;
}

// The largest power of two that divides `windows` and with which a step finds memory. On a CPU,
// where a process that takes too much is ended, by what passes of one window add.
std::int64_t fitting(const std::function<void(std::int64_t)>& step, std::int64_t windows,
                     DeviceRuntime& runtime) {
  std::int64_t most = 1;
  while (windows % (2 * most) == 0) most *= 2;
  if (runtime.is_cpu()) {
    const auto memory = peak_memory_of([&] { step(1); });
    const double room = 0.7 * static_cast<double>(runtime.free_bytes());
    while (most > 1 && memory && memory->added() * static_cast<double>(most) > room) most /= 2;
    return most;
  }
  for (;; most /= 2) {
    io::check_interrupt();
    if (found_memory([&] {
          step(most);
          runtime.synchronize();
        })) {
      return most;
    }
    if (most == 1) {
      throw Error(ErrorKind::out_of_memory, "bench train",
                  "a pass of one window does not fit; use --recompute, fewer --layers or a shorter "
                  "--context");
    }
  }
}

}  // namespace

std::vector<const StepSide*> StepComparison::sides() const {
  std::vector<const StepSide*> out = {&sparse, &dense};
  if (eager) out.push_back(&*eager);
  return out;
}

double StepComparison::over_sparse(const StepSide& side) const {
  return median(side.seconds) / median(sparse.seconds);
}

nlohmann::json StepComparison::to_json() const {
  std::vector<double> ratios;  // of neighbours
  for (std::size_t i = 0; i < dense.seconds.size(); ++i) {
    ratios.push_back(dense.seconds[i] / sparse.seconds[i]);
  }
  const auto ratio = [&](auto bytes) {
    const bool counted = dense.memory && sparse.memory;
    return optional_json(counted ? std::optional(std::invoke(bytes, *sparse.memory) /
                                                 std::invoke(bytes, *dense.memory))
                                 : std::nullopt);
  };
  nlohmann::json all = nlohmann::json::array();
  for (const StepSide* side : sides()) all.push_back(side_json(*side, tokens));
  return {
      {"tokens", tokens},
      {"runs", dense.seconds.size()},
      {"nnz_mean", nnz_mean},
      {"sides", all},
      {"dense", side_json(dense, tokens)},
      {"sparse", side_json(sparse, tokens)},
      {"energy_source", energy_source == nullptr ? nlohmann::json() : energy_source},
      {"peak_bytes_ratio", ratio(&PeakMemory::peak)},
      {"added_bytes_ratio", ratio(&PeakMemory::added)},
      {"speedup", over_sparse(dense)},
      {"speedup_eager", optional_json(eager ? std::optional(over_sparse(*eager)) : std::nullopt)},
      {"speedup_min", *std::ranges::min_element(ratios)},
      {"speedup_max", *std::ranges::max_element(ratios)}};
}

std::int64_t ticks(const StepOptions& options, bool eager) {
  const std::int64_t sides = eager ? 3 : 2;
  return 2 + sides * (options.repeats + 1 + (options.fit ? 1 : 0));
}

StepComparison compare_steps(Trainer& trainer, EagerTraining* eager, const StepOptions& options,
                             const std::function<void(const std::string&)>& tick,
                             const std::function<void(const StepComparison&)>& round) {
  // Of every side: a baseline that repeats its bits is not the fastest one.
  const AnyOrder guard;
  DeviceRuntime& runtime = runtime_of(trainer.model().device());
  const std::int64_t windows = trainer.recipe().micro_batch * trainer.recipe().accumulation;
  StepComparison out;
  out.tokens = static_cast<double>(trainer.recipe().tokens_per_step());
  for (StepSide* side :
       {&out.sparse, &out.dense, eager != nullptr ? &out.eager.emplace() : nullptr}) {
    if (side == nullptr) continue;
    side->micro_batch = trainer.recipe().micro_batch;
    const bool own = side != &out.sparse && side != &out.dense;
    side->name = own ? "PyTorch eager" : side == &out.sparse ? "sparse" : "dense";
    if (!own && runtime.is_cpu()) side->times.emplace();
  }
  const auto trained = [&](StepSide& side, bool sparse) {
    return Contender{&side, [&trainer, &side, sparse] {
                       trainer.use_path(sparse);
                       trainer.set_micro_batch(side.micro_batch);
                       trainer.time_steps(side.times ? &*side.times : nullptr);
                       trainer.step();
                       trainer.time_steps(nullptr);
                     }};
  };
  std::vector<Contender> all = {trained(out.sparse, true), trained(out.dense, false)};
  if (eager != nullptr) {
    StepSide& side = *out.eager;
    all.push_back({&side, [eager, &side] { eager->step(side.micro_batch); }});
  }
  // The first steps make what stays, the optimizer's moments among it; a second one of the sparse
  // path has the layers that a GPU trains sparsely.
  for (int i = 0; i < (runtime.is_cpu() ? 1 : 2); ++i) all[0].step();
  tick("first step");
  for (Contender& one : all) {
    if (!options.fit) break;
    one.side->micro_batch = fitting(
        [&one, eager](std::int64_t micro_batch) {
          if (eager != nullptr) eager->clear_gradients();  // of a step that found no memory
          one.side->micro_batch = micro_batch;
          one.step();
        },
        windows, runtime);
    tick("passes that fit, " + one.side->name);
  }
  // Memory, before freed memory is kept: a side is not to find what the one before it left.
  for (Contender& one : all) {
    io::check_interrupt();
    const bool own = out.eager && one.side == &*out.eager;
    one.side->memory =
        memory_of(one.step, runtime, own ? static_cast<double>(eager->foreign_bytes()) : 0.0);
    tick("memory, " + one.side->name);
  }
  if (runtime.is_cpu()) keep_freed_memory();
  all[1].step();  // touches the memory that is kept
  tick("warming up");
  trainer.reset_activity();
  for (Contender& one : all) {
    if (one.side->times) one.side->times = StepTimes();
  }
  RunEnergy energy(runtime.uuid(), all.size());
  out.energy_source = energy.source();
  MeasureOptions meter;
  energy.watch(meter);
  const bool counted = !runtime.is_cpu() && energy.source() != nullptr;
  const double least = counted ? kGpuEnergySeconds / options.repeats : 0.0;
  for (int r = 0; r < options.repeats; ++r) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      io::check_interrupt();
      const std::size_t s = r % 2 == 0 ? i : all.size() - 1 - i;
      runtime.synchronize();
      if (meter.before_run) meter.before_run();
      double seconds = 0;
      std::int64_t steps = 0;
      while (steps == 0 || seconds < least) {
        const Stopwatch watch(&seconds);
        all[s].step();
        runtime.synchronize();
        ++steps;
      }
      if (meter.after_run) meter.after_run(s);
      StepSide& side = *all[s].side;
      side.seconds.push_back(seconds / static_cast<double>(steps));
      side.steps += steps;
      if (side.times) side.times->whole += seconds;
      tick(side.name);
    }
    for (std::size_t s = 0; s < all.size(); ++s) all[s].side->joules = energy.joules(s);
    const std::vector<LayerActivity> layers = trainer.activity();
    out.nnz_mean = 0;
    for (const LayerActivity& layer : layers) {
      out.nnz_mean += layer.nnz_mean / static_cast<double>(layers.size());
    }
    if (round) round(out);
  }
  return out;
}

}  // namespace twell::lm
