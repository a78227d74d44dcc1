// What training keeps between its passes, and the backward pass in its workspace.
#pragma once

#include "cuda/kernels/train_kernels.h"
#include "cuda/ops/buffers.h"
#include "twell/cuda_train.h"

namespace twell::cuda {

struct KeptBuffers {
  FiredBits fired;                  // [M, H − hot]
  std::int64_t* offsets = nullptr;  // [M + 1]
  std::uint32_t* values = nullptr;  // [kept_places]
  std::uint16_t* hot_g = nullptr;   // [M, hot]
  std::uint16_t* hot_u = nullptr;
  std::int64_t hot_stride = 0;
};
KeptBuffers carve_kept(Carver& carver, const TrainPlan& plan);

// What a forward pass leaves for training; row `first` is the workspace's first.
struct Keeping {
  KeptBuffers buffers;
  std::int64_t places = 0;
  float* l1 = nullptr;        // [M]; may be null
  float* chunk_l1 = nullptr;  // [partials]
};

struct BackwardBuffers {
  void* library = nullptr;
  // Hot neurons.
  std::uint16_t* dh = nullptr;       // [M, hot]
  std::uint16_t* h = nullptr;        // [M, hot]
  std::uint16_t* dv = nullptr;       // [M, hot], and du beside it
  std::uint16_t* weights = nullptr;  // rows of Wg, then of Wu
  float* sums = nullptr;             // [M, D]
  std::int64_t dv_stride = 0, weights_stride = 0, sums_stride = 0;
  // The others.
  TransposeArgs transpose;
  PlaceGradient* gradients = nullptr;
  float* row_partial = nullptr;
  float* neuron_partial = nullptr;
  std::uint32_t* zeroed = nullptr;
  std::int64_t zeroed_count = 0;
};
BackwardBuffers carve_backward(Carver& carver, const TrainPlan& plan);

}  // namespace twell::cuda
