#include "train/training_gate.h"

#include <torch/types.h>

#include <algorithm>
#include <optional>

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

bool TrainingGate::decide(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                          const at::Tensor& down, const ActivationSpec& activation) {
  const CpuTier tier = default_cpu_tier();
  if (!screen_pays(tier, 0.0) || x.size(0) < kFewestInputs) return false;
  const at::NoGradGuard no_grad;
  const at::Tensor sample = sample_of(x);
  axis_ = sample.to(at::kFloat).mean(0);
  const SparseOperands operands = {gate, up, down, screen(x, gate)};
  const auto candidates = std::get<3>(sparse_ffn_stats(sample, operands, activation));
  const auto all = static_cast<double>(sample.size(0) * gate.size(0));
  return screen_pays(tier, candidates.item<double>() / all);
}

at::Tensor TrainingGate::screen(const at::Tensor& x, const at::Tensor& gate) {
  const at::NoGradGuard no_grad;
  if (!axis_.defined()) axis_ = sample_of(x).to(at::kFloat).mean(0);
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&)>(
          "twell::screen_weight");
  return op.call(gate, axis_);
}

}  // namespace twell::lm
