#include "kernels/cpu/kernels.h"

#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/common/kernels.h"

namespace twell::avx512 {

constinit const Kernels kernels_bf16 = make_kernels<Isa, bf16>();
constinit const Kernels kernels_f32 = make_kernels<Isa, float>();

}  // namespace twell::avx512
