// A step of training as people run it with transformers' Trainer and bf16=True: an eager model with
// fp32 weights under autocast, PyTorch's cross entropy of all logits in fp32, clipped gradients,
// the fused AdamW.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "measure/eager_model.h"
#include "train/trainer.h"

namespace twell::lm {

class EagerTraining {
 public:
  static bool serves(const Trainer& trainer) { return EagerModel::serves(trainer.config()); }
  // On the trainer's fp32 weights and moments, so that both fit beside one another, and on so many
  // windows as it has in a step, of the same stream. The trainer outlives this; its learning rate
  // is 0 here too.
  EagerTraining(Trainer& trainer, const TokenStream& tokens);

  // With passes of so many windows.
  void step(std::int64_t micro_batch);
  void clear_gradients();
  // Of the last step: the cross entropy in nats a token, and the norm of the gradient.
  double loss() const { return loss_.item<double>(); }
  double grad_norm() const { return grad_norm_.item<double>(); }
  // Of the trainer, that this side has no use for: copies of the weights in the compute type.
  std::int64_t foreign_bytes() const { return foreign_bytes_; }

 private:
  at::Tensor cross_entropy(const at::Tensor& hidden, const at::Tensor& targets) const;
  void pass(const at::Tensor& windows, double share);
  void update();

  std::vector<OptimizedParameter*> of_;  // the trainer's
  std::vector<at::Tensor> weights_;      // leaves, fp32
  std::optional<EagerModel> model_;
  at::Tensor windows_;  // int64 [windows, context + 1]
  at::Tensor loss_, grad_norm_;
  Recipe recipe_;
  std::int64_t foreign_bytes_ = 0;
};

}  // namespace twell::lm
