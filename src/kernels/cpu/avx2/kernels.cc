#include "kernels/cpu/kernels.h"

#include "kernels/cpu/avx2/isa.h"
#include "kernels/cpu/common/kernels.h"

namespace twell::avx2 {

constinit const TierKernels kernels = make_tier<Isa>();

}  // namespace twell::avx2
