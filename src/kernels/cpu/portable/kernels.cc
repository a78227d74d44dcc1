#include "kernels/cpu/kernels.h"

#include "kernels/cpu/common/kernels.h"
#include "kernels/cpu/portable/isa.h"

namespace twell::portable {

constinit const Kernels kernels_bf16 = make_kernels<Isa, bf16>();
constinit const Kernels kernels_f32 = make_kernels<Isa, float>();

}  // namespace twell::portable
