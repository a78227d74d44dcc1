#include "synth/trace_layer.h"

#include <fmt/core.h>
#include <torch/types.h>

#include <cmath>

#include "twell/status.h"

namespace twell::lm {

SyntheticLayer traced_layer(const SyntheticShape& shape, const io::ActivityRows& rows,
                            std::uint64_t seed) {
  const std::int64_t d = shape.width, h = shape.neurons;
  const auto tokens = static_cast<std::int64_t>(rows.rows());
  if (tokens > d) {
    throw Error(ErrorKind::invalid_argument, "traced_layer",
                fmt::format("{} tokens do not fit into inputs of {}", tokens, d));
  }
  at::Generator source = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto normal = [&](double deviation) {
    return at::randn({h, d}, source, at::kFloat).mul_(deviation);
  };
  // At least half a unit beyond the threshold, on either side: no rounding crosses it.
  const at::Tensor size = normal(0.5).abs_().add_(0.5);
  SyntheticLayer layer;
  at::Tensor gate = shape.threshold - size;
  auto* values = gate.mutable_data_ptr<float>();
  const auto* sizes = size.const_data_ptr<float>();
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (const std::uint32_t neuron : rows.row(static_cast<std::size_t>(t))) {
      if (neuron >= h) {
        throw Error(ErrorKind::invalid_argument, "traced_layer",
                    fmt::format("neuron {} of a layer of {}", neuron, h));
      }
      const std::int64_t at = static_cast<std::int64_t>(neuron) * d + t;
      values[at] = static_cast<float>(shape.threshold) + sizes[at];
    }
  }
  layer.gate = gate.to(shape.dtype);
  // Of inputs of length one, weights of deviation one make hidden values of about one.
  if (shape.gated) layer.up = normal(1).to(shape.dtype);
  const double active =
      static_cast<double>(rows.neurons.size()) / std::max<double>(1, static_cast<double>(tokens));
  layer.down_t = normal(1 / std::sqrt(std::max(1.0, active))).to(shape.dtype);
  layer.down = layer.down_t.t().contiguous();
  return layer;
}

at::Tensor traced_inputs(const SyntheticShape& shape, std::int64_t recorded, std::int64_t tokens) {
  const at::Tensor units = at::eye(recorded, shape.width, at::TensorOptions(shape.dtype));
  return units.index_select(0, at::arange(tokens).remainder_(recorded));
}

}  // namespace twell::lm
