#include "synth/synthetic.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace twell::lm {
namespace {

enum : std::uint64_t { kDirections = 3, kWeights, kInputs, kBiases };

at::Tensor normal(std::int64_t rows, std::int64_t cols, double deviation, at::Generator& source) {
  return at::randn({rows, cols}, source, at::kFloat).mul_(deviation);
}

// Two orthonormal directions: [2, D]. The first carries a neuron's popularity, the second a row's
// general activity.
at::Tensor directions(std::int64_t input, std::uint64_t seed) {
  at::Generator source = at::make_generator<at::CPUGeneratorImpl>(random_stream(seed, kDirections));
  at::Tensor d = at::randn({2, input}, source, at::kFloat);
  d[0].div_(d[0].norm());
  if (input > 1) {
    d[1].sub_(d[0] * d[1].dot(d[0]));
    d[1].div_(d[1].norm());
  } else {
    d[1].zero_();
  }
  return d;
}

at::Tensor to_tensor(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).to(at::kFloat);
}

// Of a few tenths, as trained ones.
void add_biases(SyntheticLayer& layer, const SyntheticShape& shape, std::uint64_t seed) {
  at::Generator source = at::make_generator<at::CPUGeneratorImpl>(random_stream(seed, kBiases));
  const auto bias = [&](std::int64_t size) {
    return normal(1, size, 0.3, source).flatten().to(shape.dtype);
  };
  layer.gate_bias = bias(shape.neurons);
  if (shape.gated) layer.up_bias = bias(shape.neurons);
  layer.down_bias = bias(shape.width);
}

}  // namespace

SyntheticLayer synthetic_layer(const SyntheticShape& shape, std::uint64_t seed) {
  const std::int64_t d = shape.width, h = shape.neurons;
  SyntheticLayer layer;
  if (shape.biases) add_biases(layer, shape, seed);
  at::Generator source = at::make_generator<at::CPUGeneratorImpl>(random_stream(seed, kWeights));
  std::vector<double> shifts = neuron_popularity(h, shape.activity, seed);
  for (double& p : shifts) p = normal_quantile(p) + shape.threshold;
  at::Tensor levels = to_tensor(shifts);
  if (shape.biases) levels.sub_(layer.gate_bias);
  const at::Tensor axes = directions(d, seed);

  // Pre-activation of neuron n for an input √D(d₀ + a d₁) + e, e ~ N(0, I): the noise has variance
  // 1, the shift is Φ⁻¹(p) + a, less a bias. Down is scaled to outputs of about the size of the
  // inputs.
  const double root = std::sqrt(static_cast<double>(d));
  at::Tensor gate = normal(h, d, 1 / root, source);
  gate.sub_(gate.matmul(axes.t()).matmul(axes));
  gate.addr_(levels, axes[0], 1, 1 / root);
  gate.add_(axes[1].unsqueeze(0), 1 / root);

  layer.gate = gate.to(shape.dtype);
  if (shape.gated) layer.up = normal(h, d, 1 / root, source).to(shape.dtype);
  const double active = std::max(1.0, shape.activity.mean_nnz);
  layer.down_t = normal(h, d, 1 / std::sqrt(active), source).to(shape.dtype);
  layer.down = layer.down_t.t().contiguous();
  return layer;
}

std::int64_t input_batches(std::int64_t tokens) {
  return std::clamp<std::int64_t>(512 / tokens, 2, 128);
}

at::Tensor synthetic_inputs(const SyntheticShape& shape, std::int64_t tokens, std::uint64_t seed) {
  const std::int64_t d = shape.width;
  at::Generator source = at::make_generator<at::CPUGeneratorImpl>(random_stream(seed, kInputs));
  const auto popularity = neuron_popularity(shape.neurons, shape.activity, seed);
  const auto shifts = row_shifts(tokens, popularity, shape.activity, seed);
  const at::Tensor axes = directions(d, seed);
  const double root = std::sqrt(static_cast<double>(d));
  at::Tensor x = normal(tokens, d, 1, source);
  x.sub_(x.matmul(axes.t()).matmul(axes));
  x.add_(axes[0].unsqueeze(0), root);
  x.addr_(to_tensor(shifts), axes[1], 1, root);
  return x.to(shape.dtype);
}

}  // namespace twell::lm
