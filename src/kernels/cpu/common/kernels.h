// One table from the templates of this folder.
#pragma once

#include "kernels/cpu/common/attention.h"
#include "kernels/cpu/common/exponentials.h"
#include "kernels/cpu/common/gemm.h"
#include "kernels/cpu/common/pack.h"
#include "kernels/cpu/common/row_panels.h"
#include "kernels/cpu/common/sampled_dots.h"
#include "kernels/cpu/common/screen.h"
#include "kernels/cpu/common/weighted_rows.h"

namespace twell {
namespace {

template <class Isa, class T>
constexpr Kernels make_kernels() {
  using X = typename Isa::template X<T>;  // of the GEMM
  return {
      .x = {dtype_of<X>::value},
      .gemm = RegisterGemm<Isa, T>::run,
      .pack = pack<Isa, T>,
      .screen_row = ScreenKernels<Isa, T>::screen_row,
      .screen_gemm = RegisterGemm<Isa, std::int8_t>::run_screen,
      .screen_pack = ScreenKernels<Isa, T>::pack,
      .sampled_dots = sampled_dots<Isa, T>,
      .weighted_rows = weighted_rows<Isa, T>,
      .round_row = round_row<Isa, T>,
      .pack_neurons = pack_neurons<Isa, T>,
      .pack_inputs = pack_inputs<Isa, T>,
      .multiply_nonzeros = multiply_nonzeros<Isa, X>,
      .all_finite = all_finite<T>,
      .key_scores = key_scores<Isa, T>,
      .exponentials = exponentials<Isa>,
      .weighted_values = weighted_values<Isa, T>,
  };
}

}  // namespace
}  // namespace twell
