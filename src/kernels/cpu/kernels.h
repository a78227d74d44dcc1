// Every CPU implementation, by tier.
#pragma once

#include "kernels/kernel.h"

namespace twell {

#define TWELL_DECLARE_GEMM_RELU_TWELL              \
  extern const GemmReluTwell gemm_relu_twell_bf16; \
  extern const GemmReluTwell gemm_relu_twell_f32;  \
  extern const Gemm gemm_bf16;                     \
  extern const Gemm gemm_f32;                      \
  extern const ChosenRows chosen_rows_bf16;        \
  extern const ChosenRows chosen_rows_f32;
#define TWELL_DECLARE_SPARSE_KERNELS               \
  extern const TwellGatedFfn twell_gated_ffn_bf16; \
  extern const TwellGatedFfn twell_gated_ffn_f32;  \
  extern const ScreenedGate screened_gate_bf16;    \
  extern const ScreenedGate screened_gate_f32;     \
  extern const TwellSpmm twell_spmm_bf16;          \
  extern const TwellSpmm twell_spmm_f32;

namespace portable {
TWELL_DECLARE_GEMM_RELU_TWELL
TWELL_DECLARE_SPARSE_KERNELS
}  // namespace portable
namespace avx2 {
TWELL_DECLARE_GEMM_RELU_TWELL
TWELL_DECLARE_SPARSE_KERNELS
}  // namespace avx2
namespace avx512 {
TWELL_DECLARE_GEMM_RELU_TWELL
TWELL_DECLARE_SPARSE_KERNELS
}  // namespace avx512
namespace amx {
extern const GemmReluTwell gemm_relu_twell_bf16;
extern const Gemm gemm_bf16;
}  // namespace amx

#undef TWELL_DECLARE_GEMM_RELU_TWELL
#undef TWELL_DECLARE_SPARSE_KERNELS

}  // namespace twell
