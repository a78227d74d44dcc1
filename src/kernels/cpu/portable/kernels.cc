#include "kernels/cpu/kernels.h"

#include "kernels/cpu/common/kernels.h"
#include "kernels/cpu/portable/isa.h"

namespace twell::portable {

constinit const TierKernels kernels = make_tier<Isa>();

}  // namespace twell::portable
