#include "kernels/cpu/common/twell_spmm.h"

#include "kernels/cpu/avx512/isa.h"
#include "kernels/cpu/kernels.h"

namespace twell::avx512 {

const TwellSpmm twell_spmm_bf16 = {twell_spmm_accumulate<Isa, bf16>, twell_spmm_store<Isa, bf16>};
const TwellSpmm twell_spmm_f32 = {twell_spmm_accumulate<Isa, float>, twell_spmm_store<Isa, float>};

}  // namespace twell::avx512
