#include "measure/step_bench.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "decoder/profile.h"
#include "measure/interrupt.h"
#include "measure/machine.h"
#include "measure/timing.h"

namespace twell::measure {
namespace {

double seconds_of_step(lm::Trainer& trainer) {
  double seconds = 0;
  {
    const lm::Stopwatch watch(&seconds);
    trainer.step();
  }
  return seconds;
}

nlohmann::json bytes_json(const StepSide& side, double PeakMemory::*bytes) {
  return optional_json(side.memory ? std::optional((*side.memory).*bytes) : std::nullopt);
}

nlohmann::json side_json(const StepSide& side, double tokens) {
  const double all = std::accumulate(side.seconds.begin(), side.seconds.end(), 0.0);
  const auto share = [all](double seconds) { return seconds / all; };
  const lm::StepTimes& t = side.times;
  return {{"step_us", median(side.seconds) * 1e6},
          {"tokens_per_s", tokens / median(side.seconds)},
          {"base_bytes", bytes_json(side, &PeakMemory::before)},
          {"peak_bytes", bytes_json(side, &PeakMemory::peak)},
          {"share",
           {{"feed_forward", share(t.feed_forward)},
            {"head_and_loss", share(t.head_and_loss)},
            {"optimizer", share(t.optimizer)},
            {"rest", share(all - t.feed_forward - t.head_and_loss - t.optimizer)}}}};
}

}  // namespace

double StepComparison::speedup() const { return median(dense.seconds) / median(sparse.seconds); }

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
  return {{"tokens", tokens},
          {"nnz_mean", nnz_mean},
          {"dense", side_json(dense, tokens)},
          {"sparse", side_json(sparse, tokens)},
          {"peak_bytes_ratio", ratio(&PeakMemory::peak)},
          {"added_bytes_ratio", ratio(&PeakMemory::added)},
          {"speedup", speedup()},
          {"speedup_min", *std::ranges::min_element(ratios)},
          {"speedup_max", *std::ranges::max_element(ratios)}};
}

StepComparison compare_steps(lm::Trainer& trainer, int repeats,
                             const std::function<void(const std::string&)>& tick) {
  StepComparison out;
  out.tokens = static_cast<double>(trainer.recipe().tokens_per_step());
  const auto with = [&](bool sparse) -> StepSide& {
    trainer.use_path(sparse);
    return sparse ? out.sparse : out.dense;
  };
  // The first step makes what stays, the optimizer's moments among it.
  with(true);
  trainer.step();
  tick("first step");
  // Memory, before freed memory is kept: the second side is not to find what the first one left.
  for (const bool sparse : {true, false}) {
    check_interrupt();
    StepSide& side = with(sparse);
    side.memory = peak_memory_of([&] { trainer.step(); });
    tick(sparse ? "memory, sparse" : "memory, dense");
  }
  keep_freed_memory();
  with(false);
  trainer.step();  // touches the memory that is kept
  tick("warming up");
  trainer.reset_activity();
  for (int r = 0; r < repeats; ++r) {
    for (int i = 0; i < 2; ++i) {
      check_interrupt();
      const bool sparse = i != r % 2;
      StepSide& side = with(sparse);
      trainer.time_steps(&side.times);
      side.seconds.push_back(seconds_of_step(trainer));
      tick(sparse ? "sparse" : "dense");
    }
  }
  trainer.time_steps(nullptr);
  const std::vector<lm::LayerActivity> layers = trainer.activity();
  for (const lm::LayerActivity& layer : layers) {
    out.nnz_mean += layer.nnz_mean / static_cast<double>(layers.size());
  }
  return out;
}

}  // namespace twell::measure
