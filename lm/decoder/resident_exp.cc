#include "decoder/resident_exp.h"

#include <torch/types.h>

namespace twell::lm {

void keep_exp_resident() {
  // sigmoid(x) = 1 / (1 + exp(-x)); vectors of 16, of which PyTorch's loop takes two at a time.
  static const at::Tensor far_below = at::full({64}, -1e3, at::kFloat);
  at::sigmoid(far_below);
}

}  // namespace twell::lm
