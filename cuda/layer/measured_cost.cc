#include "cuda/layer/measured_cost.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "twell/status.h"

namespace twell::lm {
namespace {

CostModel measure(DeviceRuntime& runtime, const FfnShape& shape, const TimedLayer& layer) {
  const c10::InferenceMode inference;
  CostModel cost;
  cost.measured_on = runtime.describe();
  cost.gated = shape.gated;
  cost.tokens = {1, 32, 256, 1024};
  cost.densities = {0.005, 0.02, 0.1, 0.4};
  const auto per_weight = [&](double seconds) {
    return seconds * 1e9 / static_cast<double>(shape.width * shape.neurons);
  };
  for (const std::int64_t rows : cost.tokens) {
    const bool recorded = rows <= 32;  // as decoding has them
    const at::Tensor x = at::randn({rows, shape.width}, layer.gate.options());
    cost.dense.push_back(per_weight(seconds_of(runtime, recorded, [&] { layer.dense(x); })));
    const at::Tensor values = at::linear(x, layer.gate).to(at::kFloat).flatten();
    auto& sparse = cost.sparse.emplace_back();
    for (const double density : cost.densities) {
      const auto rank = std::clamp<std::int64_t>(
          std::llround((1 - density) * static_cast<double>(values.numel())), 1, values.numel());
      const float threshold = std::max(0.0F, std::get<0>(values.kthvalue(rank)).item<float>());
      const std::vector<double> rates(static_cast<std::size_t>(shape.neurons), density);
      const std::int64_t hot = runtime.choose_hot(shape, rows, rates).count;
      sparse.push_back(
          per_weight(seconds_of(runtime, recorded, [&] { layer.sparse(x, threshold, hot); })));
    }
  }
  return cost;
}

}  // namespace

double seconds_of(DeviceRuntime& runtime, bool recorded, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRecordedCalls = 8;
  if (runtime.capturing()) {
    throw Error(ErrorKind::invalid_argument, "timing a layer",
                "a graph is being recorded, and timing waits for the device; load the model, or "
                "make the layer, before recording");
  }
  // What is made for the first time is neither to be recorded nor timed.
  call();
  call();
  std::unique_ptr<StepGraph> graph;
  if (recorded) {
    graph = runtime.make_graph();
    graph->capture([&call] {
      for (int i = 0; i < kRecordedCalls; ++i) call();
    });
  }
  const auto run = [&](int times) {
    runtime.synchronize();
    const auto begin = Clock::now();
    for (int i = 0; i < times; ++i) graph ? graph->replay() : call();
    runtime.synchronize();
    return std::chrono::duration<double>(Clock::now() - begin).count() / times;
  };
  (void)run(1);
  const int times = static_cast<int>(std::clamp(2e-3 / std::max(run(1), 1e-7), 1.0, 200.0));
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) best = std::min(best, run(times));
  return recorded ? best / kRecordedCalls : best;
}

CostModel measured_cost(DeviceRuntime& runtime, const FfnShape& shape, const TimedLayer& layer) {
  using Key = std::tuple<const DeviceRuntime*, std::int64_t, std::int64_t, bool, DType>;
  static std::mutex mutex;
  static std::map<Key, CostModel> measured;
  const std::lock_guard lock(mutex);
  const Key key{&runtime, shape.width, shape.neurons, shape.gated, shape.dtype};
  const auto found = measured.find(key);
  return found != measured.end()
             ? found->second
             : measured.emplace(key, measure(runtime, shape, layer)).first->second;
}

}  // namespace twell::lm
