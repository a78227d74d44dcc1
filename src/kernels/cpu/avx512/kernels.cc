#include "kernels/cpu/kernels.h"

#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/common/kernels.h"

namespace twell::avx512 {

constinit const TierKernels kernels = make_tier<Isa>();

}  // namespace twell::avx512
