#include "kernels/cpu/common/screened_gate.h"

#include "kernels/cpu/avx2/isa.h"
#include "kernels/cpu/kernels.h"

namespace twell::avx2 {

constexpr auto kGemm = RegisterGemm<Isa, std::int8_t>::run_screen;
const ScreenedGate screened_gate_bf16 = screened_gate<Isa, bf16, kGemm>();
const ScreenedGate screened_gate_f32 = screened_gate<Isa, float, kGemm>();

}  // namespace twell::avx2
