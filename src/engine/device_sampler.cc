#include "engine/device_sampler.h"

#include <torch/types.h>

#include <algorithm>

namespace twell::lm {
namespace {

// The index in each row at which the running sum of `weights` [B, n] first exceeds u times its
// total.
at::Tensor draw(const at::Tensor& weights, const at::Tensor& uniforms) {
  const at::Tensor sums = weights.cumsum(-1);
  const at::Tensor target = uniforms.unsqueeze(1) * sums.narrow(1, sums.size(1) - 1, 1);
  const at::Tensor index = sums.le(target).sum(-1, true);  // [B, 1]
  // Where rounding leads past the end: the likeliest, which surely has a probability.
  const at::Tensor past = index.ge(weights.size(1)).to(at::kLong);
  return index * (1 - past) + weights.argmax(-1, true) * past;
}

}  // namespace

at::Tensor sample_rows(const at::Tensor& logits, const SamplingOptions& options,
                       const at::Tensor& uniforms) {
  const at::Tensor largest = logits.amax(-1, true);  // NaN where one is
  at::Tensor chosen;                                 // [B, 1]
  if (options.temperature == 0.0) {
    chosen = logits.argmax(-1, true);
  } else {
    const double inverse = std::min(1.0 / options.temperature, 1e300);
    at::Tensor weights = ((logits.to(at::kDouble) - largest) * inverse).exp();  // [B, V]
    const std::int64_t vocabulary = logits.size(1);
    const bool all = options.top_k == 0 || options.top_k >= vocabulary;
    if (all && options.top_p >= 1.0) {
      chosen = draw(weights, uniforms);
    } else {
      // Stable: the smaller id of equals comes first.
      auto [sorted, ids] = weights.sort(/*stable=*/true, -1, /*descending=*/true);
      const std::int64_t kept = all ? vocabulary : options.top_k;
      sorted = sorted.narrow(1, 0, kept);
      if (options.top_p < 1.0) {
        const at::Tensor before = sorted.cumsum(-1) - sorted;
        const at::Tensor limit = options.top_p * sorted.sum(-1, true);
        sorted = sorted * before.lt(limit);
      }
      chosen = ids.gather(1, draw(sorted, uniforms));
    }
  }
  const at::Tensor sound = (largest - largest).eq(0).to(at::kLong);  // 0 for NaN and infinities
  return (chosen * sound + (sound - 1)).squeeze(1);
}

}  // namespace twell::lm
