#include "synth/synth_sparsity.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "decoder/linear.h"
#include "engine/layer_watch.h"

namespace twell::lm {
namespace {

// A neuron that shall not fire lies this many standard deviations below zero.
constexpr double kDead = 9.0;

// Rewrites `rows` [H, D] for inputs x [N, D]; returns the mean non-zeros on x.
double calibrate_rows(const at::Tensor& rows, const at::Tensor& inputs, const ActivityShape& shape,
                      std::uint64_t seed) {
  const at::Tensor x = inputs.to(at::kFloat);
  const at::Tensor mean = x.mean(0);
  const at::Tensor direction = mean / mean.norm();            // [D]
  const at::Tensor share = x.matmul(direction).clamp_min(1);  // [N], √D times a cosine
  at::Tensor w = rows.to(at::kFloat);
  w.addr_(w.matmul(direction), direction, 1, -1);
  const at::Tensor noise = x.matmul(w.t());  // [N, H]: pre-activations but for the shift
  const double deviation = noise.std().item<double>();

  std::vector<double> quantiles = neuron_popularity(rows.size(0), shape, seed);
  for (double& p : quantiles) p = std::clamp(normal_quantile(p), -kDead, kDead);
  const at::Tensor shifts =
      at::tensor(quantiles, at::kDouble).to(at::kFloat).to(x.device()).mul_(deviation);

  // A neuron gets the shift (q + c) / mean share along the direction and fires where
  // noise + share * (q + c) / mean share > 0, that is where -c lies below `level`.
  const double mean_share = share.mean().item<double>();
  const at::Tensor level = noise.mul(mean_share).div_(share.unsqueeze(1)).add_(shifts);
  const double count = shape.mean_nnz * static_cast<double>(x.size(0));
  double low = -2 * kDead * deviation, high = 2 * kDead * deviation;
  for (int i = 0; i < 40; ++i) {
    const double c = (low + high) / 2;
    const auto fired = static_cast<double>((level > -c).sum().item<std::int64_t>());
    (fired < count ? low : high) = c;
  }
  w.addr_((shifts + (low + high) / 2) / mean_share, direction);
  rows.copy_(w);
  const auto fired = (linear_of(inputs, rows) > 0).sum().item<std::int64_t>();
  return static_cast<double>(fired) / static_cast<double>(x.size(0));
}

}  // namespace

void share_direction(Model& model, std::uint64_t seed) {
  // The shared part is half as long as the rest: enough for a cosine of about 0.45. A token's own
  // part varies by 6 %, which at thresholds of about three standard deviations spreads row counts
  // by exp(±0.5).
  constexpr double kShare = 0.5, kSpread = 0.06;
  // What a layer adds to a token must not drown its embedding, or the first tokens, which attend to
  // few others, fire fifty times as often as the rest. With weights of deviation s, attention adds
  // s² D to elements of size s, 41 times as much at D = 2048; the FFN about as much as is there.
  constexpr double kAdded = 0.1;
  const at::NoGradGuard no_grad;
  at::Tensor embedding;
  for (const auto& [name, tensor] : model.parameters()) {
    if (name == "model.embed_tokens.weight") embedding = tensor;
  }
  const double deviation = embedding.slice(0, 0, 64).to(at::kFloat).std().item<double>();
  const auto width = static_cast<double>(embedding.size(1));
  for (const auto& [name, tensor] : model.parameters()) {
    if (name.ends_with("o_proj.weight")) tensor.mul_(kAdded / (deviation * width));
    if (name.ends_with("down_proj.weight")) tensor.mul_(kAdded);
  }
  at::Generator source = at::make_generator<at::CPUGeneratorImpl>(seed);
  at::Tensor direction = at::randn({embedding.size(1)}, source, at::kFloat);
  const double length = embedding[0].to(at::kFloat).norm().item<double>();
  direction.mul_(kShare * length / direction.norm().item<double>());
  direction = direction.to(embedding.device());
  constexpr std::int64_t kRows = 4096;  // bounds the fp32 copies
  for (std::int64_t first = 0; first < embedding.size(0); first += kRows) {
    at::Tensor part = embedding.slice(0, first, first + kRows);
    at::Tensor wide = part.to(at::kFloat);
    wide.mul_(
        at::randn({wide.size(0), 1}, source, at::kFloat).mul_(kSpread).exp_().to(wide.device()));
    part.copy_(wide.add_(direction));
  }
}

std::vector<double> nnz_of_layers(std::int64_t layers, double mean_nnz) {
  constexpr double kFirst = 2.0 / 28;  // of the depth: the two least active layers
  std::vector<double> out;
  double sum = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const double depth = (static_cast<double>(layer) + 0.5) / static_cast<double>(layers);
    const double from_peak = (depth - 0.25) / 0.15;
    out.push_back(depth < kFirst ? 0.33 : 0.67 + 1.33 * std::exp(-from_peak * from_peak));
    sum += out.back();
  }
  for (double& nnz : out) nnz *= mean_nnz * static_cast<double>(layers) / sum;
  return out;
}

void calibrate_sparsity(Model& model, const at::Tensor& tokens, std::span<const double> nnz,
                        std::uint64_t seed,
                        const std::function<void(std::int64_t, double)>& on_layer) {
  const at::NoGradGuard no_grad;
  at::Tensor x = model.embed(tokens);
  for (std::int64_t l = 0; l < model.layers(); ++l) {
    const FfnParameters parameters = model.ffn_parameters(l);
    ActivityShape shape;
    shape.mean_nnz = nnz[static_cast<std::size_t>(l)];
    double measured = 0;
    {
      const LayerWatch watch(model, l, [&](const at::Tensor& inputs) {
        measured = calibrate_rows(parameters.gated() ? parameters.gate : parameters.up, inputs,
                                  shape, seed + static_cast<std::uint64_t>(l) + 1);
      });
      x = model.block(l, x);
    }
    on_layer(l, measured);
  }
}

}  // namespace twell::lm
