// PyTorch's fused AdamW over fp32 master weights, and the bf16 copies that the model computes with.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/processes.h"
#include "train/recipe.h"

namespace twell::lm {

// A parameter of the model and what the optimizer keeps for it.
struct OptimizedParameter {
  std::string name;
  at::Tensor compute;  // what forward uses: fp32 (then it is the master itself) or bf16
  at::Tensor master;   // fp32
  at::Tensor m, v;     // fp32 moments
  at::Tensor sum;      // fp32 gradient sum over micro-batches; undefined while the gradient is fp32
  bool decayed = false;

  // Index i of `dimension` becomes the index order[i] that was (int64, on any device), in all of
  // them but gradients.
  void reorder(std::int64_t dimension, const at::Tensor& order);
};

// Whether weight decay applies: matrices other than tables of embeddings, which are called so.
bool is_decayed(const std::string& name, const at::Tensor& parameter);

class AdamW {
 public:
  // (name, compute parameter, fp32 master), on one device, shapes and strides equal: contiguous, or
  // the transpose of what is. Where the compute parameter is fp32 it must be the master itself.
  struct Entry {
    std::string name;
    at::Tensor compute;
    at::Tensor master;
  };
  explicit AdamW(const std::vector<Entry>& entries);  // at least one

  // After each backward pass of a step with several micro-batches: moves gradients of a type
  // narrower than fp32 into their fp32 sum. (fp32 gradients add up in place.)
  void accumulate();
  // The fp32 sum of a parameter, zero at first, for whoever adds to it without a gradient.
  at::Tensor sum_of(const std::string& name);
  // Adds up the gradients of all processes, in fp32. Where a parameter has one on any of them, it
  // has one on all afterwards.
  void sum_gradients(const Processes& processes);
  // L2 norm of the gradient of all parameters, in fp32 and fixed order.
  double grad_norm() const;
  // One update with the gradient times `grad_scale`; t = 1, 2, ... is the number of this update.
  // p -= lr * wd * p; p -= lr / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps). Parameters without a
  // gradient stay as they are. Then refreshes the compute parameters and clears all gradients.
  void update(const Recipe& recipe, double lr, double grad_scale, std::int64_t t);
  void clear_gradients();

  // Throws Error (invalid_argument) where there is no such parameter.
  OptimizedParameter& parameter(const std::string& name);
  std::vector<OptimizedParameter>& parameters() { return parameters_; }
  const std::vector<OptimizedParameter>& parameters() const { return parameters_; }

 private:
  std::vector<OptimizedParameter> parameters_;
};

}  // namespace twell::lm
