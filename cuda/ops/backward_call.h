// A call of ffn_backward(), its arguments checked.
#pragma once

#include "cuda/ops/run.h"
#include "cuda/ops/train_buffers.h"

namespace twell::cuda {

struct BackwardCall {
  const TrainPlan& plan;
  KeptBuffers kept = {};
  BackwardBuffers b = {};
  DeviceMatrix dy = {}, x = {}, gate = {}, up = {}, down = {};
  ActivationArgs activation = {};
  const float* l1 = nullptr;
  std::uint16_t* dx = nullptr;
  std::int64_t dx_stride = 0;
  WeightGradient dgate = {}, dup = {}, ddown = {};
  bool wide = false;
  bool accumulate = false;
  bool aligned = false;
  cudaStream_t stream = nullptr;

  const Problem& problem() const { return plan.forward.problem; }
  std::int64_t hot() const { return plan.forward.hot; }
};

// The hot neurons: dx to call.b.sums, or to dx where all are, and their weight gradients.
void multiply_backward(const BackwardCall& call);
// The others.
void gather_backward(const BackwardCall& call);

}  // namespace twell::cuda
