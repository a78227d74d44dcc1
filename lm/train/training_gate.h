// Whether a layer's gate goes through a screen (twell/screen.h) while it is trained.
//
// Weights change with every step, so a screen is made in every call: a few per cent of what it
// saves. The form decides how sums are rounded, so it is part of a checkpoint; the screen itself is
// not, since it changes nothing but the time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace twell::lm {

class TrainingGate {
 public:
  // Steps between decisions.
  static constexpr std::int64_t kDecideEvery = 32;

  // Whether calls on inputs like x [N, D] are to have a screen: where the processor has screens,
  // there are 32 rows or more, and it rules out enough of the pre-activations of some of them.
  // Weights and form are those of torch.ops.twell.ffn_train.
  bool decide(const at::Tensor& x, at::TensorList weights, const std::string& form);
  // As torch.ops.twell.ffn_train takes it.
  at::Tensor screen(const at::Tensor& x, const at::Tensor& gate);

 private:
  at::Tensor axis_;  // the mean of inputs seen: any will do
};

}  // namespace twell::lm
