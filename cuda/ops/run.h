// What the operations share.
#pragma once

#include "cuda/kernels/kernels.h"
#include "cuda/ops/buffers.h"
#include "cuda/ops/train_buffers.h"
#include "twell/cuda.h"

namespace twell::cuda {

ActivationArgs activation_args(const char* operation, const ActivationSpec& activation);
// A library's GEMM rounds the gate before the activation, which relu alone allows.
void check_activation(const char* operation, const GemmPlan& plan,
                      const ActivationSpec& activation);

// A call of ffn(), its arguments checked.
struct FfnCall {
  const FfnPlan& plan;
  DeviceMatrix x = {}, gate = {}, up = {}, down = {};
  std::uint16_t* y = nullptr;
  std::int64_t y_stride = 0;
  ActivationArgs activation = {};
  DeviceStats stats = {};
  cudaStream_t stream = nullptr;
  const Keeping* keeping = nullptr;  // for training
  DeviceScreen screen = {};

  std::int32_t* row_nnz(std::int64_t first) const {
    return stats.row_nnz == nullptr ? nullptr : stats.row_nnz + first;
  }
  unsigned long long* neuron_counts() const {
    return reinterpret_cast<unsigned long long*>(stats.neuron_counts);
  }
};
FfnCall call_of(const char* operation, const FfnPlan& plan, const ConstMatrixView& x,
                const FfnWeights& weights, const ActivationSpec& activation, const MatrixView& y,
                Stream stream, const DeviceStats& stats);
// The gate's kernel that packs by itself: of W or of its screen.
void launch_gate(const GemmPlan& plan, const GemmReluTwellArgs& args, cudaStream_t stream);
// The gate packed in its GEMM's epilogue; by a library's GEMM.
void run_fused(const FfnCall& call, const FfnBuffers& buffers);
void run_library(const FfnCall& call, const FfnBuffers& buffers);

// Rows of a matrix from `first` on.
inline DeviceMatrix rows_from(const DeviceMatrix& matrix, std::int64_t first) {
  return {matrix.data + first * matrix.stride, matrix.stride};
}

}  // namespace twell::cuda
