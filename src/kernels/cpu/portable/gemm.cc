#include "kernels/cpu/common/gemm.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/portable/isa.h"

namespace twell::portable {

const Gemm gemm_bf16 = gemm_registers<Isa, bf16>();
const Gemm gemm_f32 = gemm_registers<Isa, float>();
const GemmReluTwell gemm_relu_twell_bf16 = gemm_relu_twell_registers<Isa, bf16>();
const GemmReluTwell gemm_relu_twell_f32 = gemm_relu_twell_registers<Isa, float>();

}  // namespace twell::portable
