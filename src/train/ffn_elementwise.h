// The passes over [N, H] between the GEMMs of a training feed-forward layer, each reading and
// writing every element once. bf16 or fp32, contiguous, CPU; arithmetic in fp32, rounded once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/feed_forward.h"
#include "train/activity.h"

namespace twell::lm {

// r = pre where the activation keeps it, else 0; in place. The activated gate is activated(kind,
// r). Fills row_nnz and neuron_nnz.
void threshold_and_count(at::Tensor& pre, const ActivationSpec& activation, FfnCounts& counts);

// out[n, k] = in[n, columns[k]].
at::Tensor gather_columns(const at::Tensor& in, const std::vector<std::int64_t>& columns);

// h = act(r) ⊙ u (u undefined: act(r)) as a new tensor, and the sum of |h| after rounding. The sum
// is taken row by row, so it does not depend on the number of threads.
at::Tensor hidden_state(const at::Tensor& r, const at::Tensor& u, Activation kind, double* l1);

// With h = act(r) ⊙ u and dh the gradient of h without the L1 term:
//   dh += l1_grad * sign(h);  du = dh ⊙ act(r);  dr = dh ⊙ u ⊙ act'(r), zero where r is zero.
// dr replaces dh; returns du (undefined where u is).
at::Tensor hidden_backward(at::Tensor& dh, const at::Tensor& r, const at::Tensor& u,
                           Activation kind, float l1_grad);

}  // namespace twell::lm
