#include "kernels/cpu/common/gemm.h"

#include "kernels/cpu/common/pack_epilogue.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/portable/isa.h"

namespace twell::portable {
namespace {

template <class T>
constexpr GemmReluTwell with_packing() {
  return {gemm_registers<Isa, T>().x_dtype, [](const GemmReluTwellArgs& args) {
            gemm_then_pack<Isa, T>(args, RegisterGemm<Isa, T>::run);
          }};
}

}  // namespace

const Gemm gemm_bf16 = gemm_registers<Isa, bf16>();
const Gemm gemm_f32 = gemm_registers<Isa, float>();
const GemmReluTwell gemm_relu_twell_bf16 = with_packing<bf16>();
const GemmReluTwell gemm_relu_twell_f32 = with_packing<float>();

}  // namespace twell::portable
