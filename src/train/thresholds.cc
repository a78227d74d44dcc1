#include "train/thresholds.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "files/file_error.h"
#include "train/schedule.h"

namespace twell::lm {
namespace {

// Tokens that a threshold is fitted to. With 1,536 neurons they give 786,432 values, of which a
// share of 5 % is known to within 0.025 points.
constexpr std::int64_t kTokens = 512;
// A layer whose threshold is 0 takes the model's, times this, with weights as much smaller.
constexpr float kLeast = 0x1p-10F;

// At most kTokens rows, spread evenly. An odd stride: an even one may fall on the same positions of
// every window.
at::Tensor tokens_of(const at::Tensor& x) {
  const std::int64_t stride = (x.size(0) + kTokens - 1) / kTokens;
  return x.slice(0, 0, x.size(0), std::max<std::int64_t>(1, stride) | 1);
}

double share_above(const at::Tensor& values, float threshold) {
  return values.gt(threshold).sum().item<double>() / static_cast<double>(values.numel());
}

}  // namespace

bool ThresholdState::fits(std::int64_t layers) const {
  const bool fitted = !first_shares.empty();
  return std::ssize(thresholds) == layers && (!fitted || std::ssize(first_shares) == layers) &&
         std::ranges::all_of(thresholds, [](float t) { return std::isfinite(t) && t >= 0; }) &&
         std::ranges::all_of(first_shares, [](double share) { return share >= 0 && share <= 1; });
}

Thresholds::Thresholds(const Model& model) {
  const ActivationChoice activation = model.activation();
  if (activation.kind != io::HiddenAct::fat_relu) {
    io::fail_argument("recipe", "share: expected a model with relu or fatrelu, got {}",
                      io::name_of(activation.kind));
  }
  if (activation.norm_eps && !model.ffn_parameters(0).gated()) {
    io::fail_argument("recipe", "share: layers have no gate, and a norm behind their activation");
  }
  state_.thresholds.assign(at(model.layers()), activation.threshold);
}

void Thresholds::begin_step(const Recipe& recipe, std::int64_t step) {
  const std::int64_t on_path = step - recipe.scaled(recipe.anneal_steps);
  looks_ = !state_.settled && on_path >= 0 &&
           (on_path % kFitEvery == 0 || share_progress(recipe, step) >= 1.0);
}

void Thresholds::see(std::int64_t layer, const at::Tensor& x, const Projections& p) {
  if (!looks_ || seen_.contains(layer)) return;
  const at::NoGradGuard no_grad;
  const auto wide = [](const at::Tensor& t) { return t.defined() ? t.to(at::kFloat) : t; };
  seen_[layer] = at::linear(wide(tokens_of(x)), wide(p.first), wide(p.first_bias)).cpu();
}

void Thresholds::fit(const Recipe& recipe, std::int64_t step, const Processes& processes) {
  if (!looks_) return;
  const auto seen = std::exchange(seen_, {});
  std::vector<double>& first = state_.first_shares;
  if (first.empty()) {
    for (const auto& [layer, values] : seen) {
      first.push_back(processes.of_first(share_above(values, of(layer))));
    }
  }
  const double mean =
      std::accumulate(first.begin(), first.end(), 0.0) / static_cast<double>(first.size());
  const double progress = share_progress(recipe, step);
  // As a share of what fired first: it falls from 1 to the end's.
  const double end = std::min(1.0, recipe.share / mean);
  const double kept = 1.0 - (1.0 - end) * progress;
  for (const auto& [layer, values] : seen) {
    state_.thresholds[at(layer)] =
        processes.of_first(threshold_of(values, first[at(layer)] * kept));
  }
  state_.settled = progress >= 1.0;
}

float threshold_of(const at::Tensor& values, double share) {
  const at::Tensor flat = values.flatten();
  const std::int64_t all = flat.numel();
  const std::int64_t above = std::clamp<std::int64_t>(
      std::llround(share * static_cast<double>(all)), 1, std::max<std::int64_t>(1, all - 1));
  const std::int64_t rank = std::max<std::int64_t>(1, all - above);
  return std::max(0.0F, std::get<0>(flat.kthvalue(rank)).item<float>());
}

FoldedThresholds fold(const Model& model, const std::vector<float>& thresholds) {
  FoldedThresholds out{*std::ranges::max_element(thresholds), {}};
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    const float own = std::max(thresholds[static_cast<std::size_t>(layer)], out.threshold * kLeast);
    if (own == out.threshold) continue;
    const double factor = static_cast<double>(out.threshold) / static_cast<double>(own);
    const FfnNames names = model.ffn_names(layer);
    const bool gated = !names.gate.empty();
    const auto put = [&out](const std::string& name, double times) {
      if (!name.empty()) out.factors[name] = times;
    };
    put(gated ? names.gate : names.up, factor);
    put(gated ? names.gate_bias : names.up_bias, factor);
    put(gated ? names.up : names.down, 1 / factor);
    if (gated) put(names.up_bias, 1 / factor);  // that of down is added to the sum, and stays
  }
  return out;
}

}  // namespace twell::lm
