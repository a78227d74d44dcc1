#include "measure/layer_compare.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "device/device.h"
#include "engine/layer_watch.h"
#include "files/interrupt.h"

namespace twell::lm {
namespace {

// What the feed-forward layer reads while the block computes its output from x, which takes x's
// place.
at::Tensor input_of(Model& model, std::int64_t layer, at::Tensor& x) {
  at::Tensor input;
  const LayerWatch watch(model, layer, [&input](const at::Tensor& in) { input = in; });
  x = model.block(layer, x);
  return input;
}

}  // namespace

std::vector<LayerSpeed> compare_layers(const Sides& sides, std::span<const std::int64_t> tokens,
                                       std::span<const double> nnz, const CompareOptions& options,
                                       const std::function<void()>& tick) {
  DeviceRuntime& runtime = runtime_of(sides.sparse->device());
  MeasureOptions measure = options.measure;
  if (!runtime.is_cpu()) measure.settle = [&runtime] { runtime.synchronize(); };
  Model& first = *sides.dense.front().model;
  at::Tensor x =
      first.embed(at::tensor(at::ArrayRef<std::int64_t>(tokens.data(), tokens.size()), at::kLong)
                      .narrow(0, 0, options.tokens())
                      .view({options.sequences, options.length()})
                      .narrow(1, 0, options.prompt_tokens)
                      .contiguous());
  std::vector<LayerSpeed> out;
  for (std::int64_t layer = 0; layer < sides.sparse->layers(); ++layer) {
    io::check_interrupt();
    const at::Tensor input = input_of(first, layer, x);
    std::vector<std::function<void(std::int64_t)>> calls;
    const auto add = [&](Model& model, const std::function<void()>& enter) {
      calls.emplace_back([&model, &input, enter, layer](std::int64_t) {
        if (enter) enter();
        model.feed_forward(layer).forward(input, layer, nullptr);
      });
    };
    for (const ModelSide& side : sides.dense) add(*side.model, side.enter);
    add(*sides.sparse, {});
    std::vector<Timing> timings = measure_in_turns(calls, measure);
    LayerSpeed speed;
    speed.nnz_mean = nnz[static_cast<std::size_t>(layer)];
    speed.sparse = timings.back();
    timings.pop_back();
    speed.dense = *std::ranges::min_element(timings, {}, &Timing::median_us);
    out.push_back(std::move(speed));
    tick();
  }
  return out;
}

std::optional<double> correlation(std::span<const LayerSpeed> layers) {
  if (layers.size() < 3) return std::nullopt;
  const auto n = static_cast<double>(layers.size());
  double mean_x = 0, mean_y = 0;
  for (const LayerSpeed& layer : layers) {
    mean_x += layer.nnz_mean / n;
    mean_y += layer.speedup() / n;
  }
  double xx = 0, yy = 0, xy = 0;
  for (const LayerSpeed& layer : layers) {
    const double x = layer.nnz_mean - mean_x, y = layer.speedup() - mean_y;
    xx += x * x;
    yy += y * y;
    xy += x * y;
  }
  if (xx == 0 || yy == 0) return std::nullopt;
  return xy / std::sqrt(xx * yy);
}

nlohmann::json to_json(std::span<const LayerSpeed> layers) {
  nlohmann::json all = nlohmann::json::array();
  for (const LayerSpeed& layer : layers) {
    all.push_back({{"layer", all.size()},
                   {"nnz_mean", layer.nnz_mean},
                   {"dense_us", layer.dense.median_us},
                   {"dense_us_min", layer.dense.min_us},
                   {"dense_us_max", layer.dense.max_us},
                   {"sparse_us", layer.sparse.median_us},
                   {"sparse_us_min", layer.sparse.min_us},
                   {"sparse_us_max", layer.sparse.max_us},
                   {"speedup", layer.speedup()}});
  }
  const auto found = correlation(layers);
  return {{"layers", all}, {"correlation", found ? nlohmann::json(*found) : nlohmann::json()}};
}

}  // namespace twell::lm
