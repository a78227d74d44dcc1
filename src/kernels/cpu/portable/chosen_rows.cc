#include "kernels/cpu/common/chosen_rows.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/portable/isa.h"

namespace twell::portable {

const ChosenRows chosen_rows_bf16 = chosen_rows<Isa, bf16>();
const ChosenRows chosen_rows_f32 = chosen_rows<Isa, float>();

}  // namespace twell::portable
