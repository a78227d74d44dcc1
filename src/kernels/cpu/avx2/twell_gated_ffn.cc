#include "kernels/cpu/common/twell_gated_ffn.h"

#include "kernels/cpu/avx2/isa.h"
#include "kernels/cpu/kernels.h"

namespace twell::avx2 {

const TwellGatedFfn twell_gated_ffn_bf16 = {twell_gated_ffn_row<Isa, bf16>};
const TwellGatedFfn twell_gated_ffn_f32 = {twell_gated_ffn_row<Isa, float>};

}  // namespace twell::avx2
