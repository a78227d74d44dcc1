#include "kernels/cpu/common/gemm_relu_twell.h"

#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/kernels.h"

namespace twell::avx512 {

const GemmReluTwell gemm_relu_twell_bf16 = {dtype_of<Isa::X<bf16>>::value,
                                            gemm_relu_twell_registers<Isa, bf16>};
const GemmReluTwell gemm_relu_twell_f32 = {dtype_of<Isa::X<float>>::value,
                                           gemm_relu_twell_registers<Isa, float>};

}  // namespace twell::avx512
