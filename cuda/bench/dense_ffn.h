// The dense layer as a library computes it, at its best settings: the baseline.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cuda/bench/blas_gemm.h"

namespace twell::bench {

struct DenseLayer {
  const std::uint16_t* x = nullptr;            // [M, D]
  const std::uint16_t* gate_up = nullptr;      // [2H, D]: gate over up, joined into one GEMM
  const std::uint16_t* down = nullptr;         // [H, D]
  const std::uint16_t* down_by_row = nullptr;  // [D, H], as checkpoints have it
  std::uint16_t* gate_up_out = nullptr;        // [M, 2H]
  std::uint16_t* hidden_state = nullptr;       // [M, H]
  std::uint16_t* y = nullptr;                  // [M, D]
};

// y = (relu(x Wgᵀ) ⊙ (x Wuᵀ)) Wd in bf16 with f32 sums: a GEMM, an elementwise kernel, a GEMM.
class DenseFfn {
 public:
  // Chooses the GEMMs, and of the two forms of down the one that is faster. Overwrites what the
  // layer writes.
  DenseFfn(const Blas& blas, Timer& timer, const DenseLayer& layer, std::int64_t tokens,
           std::int64_t width, std::int64_t neurons);
  void run() const;
  std::string to_string() const;

 private:
  void activate() const;
  bool uses_down_by_row() const { return down_by_row_->best_us() < down_->best_us(); }

  DenseLayer layer_;
  std::int64_t tokens_;
  int hidden_;
  cudaStream_t stream_;
  BlasGemm gate_up_;
  std::optional<BlasGemm> down_, down_by_row_;
};

}  // namespace twell::bench
