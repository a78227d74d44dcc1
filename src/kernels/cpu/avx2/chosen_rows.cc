#include "kernels/cpu/common/chosen_rows.h"

#include "kernels/cpu/avx2/isa.h"
#include "kernels/cpu/kernels.h"

namespace twell::avx2 {

const ChosenRows chosen_rows_bf16 = chosen_rows<Isa, bf16>();
const ChosenRows chosen_rows_f32 = chosen_rows<Isa, float>();

}  // namespace twell::avx2
