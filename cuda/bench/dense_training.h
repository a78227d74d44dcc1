// The GEMMs of training the dense layer, as a library computes them at its best: what no dense
// training is faster than.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/bench/blas_gemm.h"
#include "cuda/bench/device_layer.h"

namespace twell::bench {

// Forward and backward have nine GEMMs. Those of gate and up are joined, so that six calls do them;
// element-wise operations between them are left out.
class DenseTraining {
 public:
  // Chooses the GEMMs. Values they multiply are those of the layer, as sparse as in training: that
  // decides the GPU's power and so its clock.
  DenseTraining(const Blas& blas, Timer& timer, const DeviceLayer& layer, std::int64_t tokens);
  // y of the dense layer, its activation included.
  const DeviceMemory<std::uint16_t>& forward(const DeviceLayer& layer) const;
  void run(const DeviceLayer& layer) const;
  std::string to_string() const;

 private:
  enum Product { kGateUp, kDown, kToHidden, kToInput, kOfGateUp, kOfDown, kProducts };
  GemmProblem problem_of(Product product) const;
  GemmOperands operands_of(Product product, const DeviceLayer& layer) const;

  int tokens_, width_, neurons_;
  cudaStream_t stream_;
  // [M, 2H]; [M, H]; of d gate over d up [M, 2H]; of a weight [2H, D]; [M, D].
  DeviceMemory<std::uint16_t> gate_up_, hidden_state_, d_gate_up_, d_hidden_, d_weight_, dx_, y_;
  std::optional<BlasGemm> gemms_[kProducts];
};

}  // namespace twell::bench
