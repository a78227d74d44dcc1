#include "measure/reference.h"

#include <torch/types.h>

#include <cmath>
#include <limits>

#include "measure/layer_timer.h"

namespace twell::lm {
namespace {

// Of every element, relative to the largest in its row; NaN throughout where NaNs differ.
at::Tensor relative_errors(const at::Tensor& y, const at::Tensor& reference) {
  const at::Tensor expected = reference.to(at::kDouble).reshape({-1, reference.size(-1)});
  const at::Tensor got = y.to(at::kDouble).reshape({-1, reference.size(-1)});
  if (!at::equal(got.isnan(), expected.isnan())) {
    return at::full_like(expected, std::numeric_limits<double>::quiet_NaN());
  }
  const at::Tensor largest = std::get<0>(expected.abs().nan_to_num().max(-1, true));
  const at::Tensor scale = at::where(largest > 0, largest, at::ones_like(largest));
  return (got - expected).abs().nan_to_num().div(scale);
}

}  // namespace

at::Tensor reference_ffn(const SyntheticLayer& layer, const ActivationChoice& activation,
                         const at::Tensor& x) {
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  return make_dense_feed_forward(parameters_of(layer.map(wide)), activation)
      ->forward(wide(x), 0, nullptr);
}

double max_rel_err(const at::Tensor& y, const at::Tensor& reference) {
  if (reference.numel() == 0) return 0;
  return relative_errors(y, reference).max().item<double>();
}

double rms_rel_err(const at::Tensor& y, const at::Tensor& reference) {
  if (reference.numel() == 0) return 0;
  return relative_errors(y, reference).square().mean().sqrt().item<double>();
}

}  // namespace twell::lm
