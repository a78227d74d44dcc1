#include "train/training_gate.h"

#include <torch/types.h>

#include <algorithm>
#include <tuple>

#include "decoder/operators.h"
#include "decoder/sparse_operators.h"
#include "twell/findings.h"

namespace twell::lm {
namespace {

// Rows that the decision looks at, spread over the call.
constexpr std::int64_t kSample = 256;

at::Tensor sample_of(const at::Tensor& x) {
  return x.slice(0, 0, x.size(0), std::max<std::int64_t>(1, x.size(0) / kSample)).contiguous();
}

}  // namespace

bool TrainingGate::decide(const at::Tensor& x, at::TensorList weights, const std::string& form) {
  const CpuTier tier = default_cpu_tier();
  if (!screen_pays(tier, 0.0) || x.size(0) < kFewestInputs) return false;
  const at::NoGradGuard no_grad;
  const at::Tensor sample = sample_of(x);
  axis_ = sample.to(at::kFloat).mean(0);
  const at::Tensor& gate = weights[0];
  using Stats = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
  static const auto op = find_operator<LayerOperator<Stats>>("twell::ffn_stats");
  const auto candidates =
      std::get<3>(op.call(sample, operator_weights(weights), screen(x, gate), form, 0));
  const auto all = static_cast<double>(sample.size(0) * gate.size(0));
  return screen_pays(tier, candidates.item<double>() / all);
}

at::Tensor TrainingGate::screen(const at::Tensor& x, const at::Tensor& gate) {
  const at::NoGradGuard no_grad;
  if (!axis_.defined()) axis_ = sample_of(x).to(at::kFloat).mean(0);
  return screen_weight(gate, axis_);
}

}  // namespace twell::lm
