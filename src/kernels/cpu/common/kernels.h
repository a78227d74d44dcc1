// The tables of a tier from the templates of this folder.
#pragma once

#include "kernels/cpu/common/attention.h"
#include "kernels/cpu/common/code_gemm.h"
#include "kernels/cpu/common/exponentials.h"
#include "kernels/cpu/common/gemm.h"
#include "kernels/cpu/common/int4_rows.h"
#include "kernels/cpu/common/pack.h"
#include "kernels/cpu/common/row_panels.h"
#include "kernels/cpu/common/sampled_dots.h"
#include "kernels/cpu/common/screen.h"
#include "kernels/cpu/common/weighted_rows.h"
#include "kernels/cpu/kernels.h"

namespace twell {
namespace {

// x of T.
template <class Isa, class T>
constexpr Kernels make_kernels() {
  using X = typename Isa::template X<T>;  // of the GEMM
  return {
      .x = {dtype_of<X>::value},
      .pack = pack<Isa, T>,
      .screen_row = ScreenKernels<Isa, T>::screen_row,
      .screen_gemm = RegisterGemm<Isa, std::int8_t>::run_screen,
      .round_row = round_row<Isa, T>,
      .multiply_nonzeros = multiply_nonzeros<Isa, X>,
      .all_finite = all_finite<T>,
      .key_scores = key_scores<Isa, T>,
      .exponentials = exponentials<Isa>,
      .weighted_values = weighted_values<Isa, T>,
  };
}

// x and weight of T.
template <class Isa, class T>
constexpr WeightKernels make_weight_kernels() {
  return {
      .gemm = RegisterGemm<Isa, T>::run,
      .screen_pack = ScreenKernels<Isa, T>::pack,
      .sampled_dots = sampled_dots<Isa, T, T>,
      .weighted_rows = weighted_rows<Isa, T>,
      .pack_neurons = pack_neurons<Isa, T>,
      .pack_inputs = pack_inputs<Isa, T, T>,
      .row_finite = row_finite<T>,
  };
}

// x of T, weight of int8.
template <class Isa, class T>
constexpr WeightKernels make_int8_kernels() {
  using Codes = Int8Codes<Isa>;
  return {
      .gemm = CodeGemm<Isa, T, Codes>::run,
      .terms_up_to = Isa::kTermsUpTo,
      .to_terms = to_terms<Isa, T, typename Codes::Term>,
      .screen_pack = nullptr,
      .sampled_dots = sampled_dots<Isa, T, std::int8_t>,
      .weighted_rows = weighted_rows<Isa, std::int8_t>,
      .pack_neurons = pack_neuron_codes<Isa, T>,
      .pack_inputs = pack_inputs<Isa, T, std::int8_t>,
      .row_finite = codes_finite,
  };
}

// x of T, weight of int4, which is no down.
template <class Isa, class T>
constexpr WeightKernels make_int4_kernels() {
  using Codes = Int4Codes<Isa>;
  return {
      .gemm = CodeGemm<Isa, T, Codes>::run,
      .terms_up_to = Isa::kInt4TermsUpTo,
      .to_terms = to_terms<Isa, T, typename Codes::Term>,
      .screen_pack = nullptr,
      .sampled_dots = sampled_int4_dots<Isa, T>,
      .weighted_rows = nullptr,
      .pack_neurons = pack_int4_neurons<Isa, T>,
      .pack_inputs = nullptr,
      .row_finite = codes_finite,
  };
}

template <class Isa>
constexpr TierKernels make_tier() {
  return {
      .bf16 = make_kernels<Isa, bf16>(),
      .f32 = make_kernels<Isa, float>(),
      .bf16_bf16 = make_weight_kernels<Isa, bf16>(),
      .f32_f32 = make_weight_kernels<Isa, float>(),
      .bf16_int8 = make_int8_kernels<Isa, bf16>(),
      .f32_int8 = make_int8_kernels<Isa, float>(),
      .bf16_int4 = make_int4_kernels<Isa, bf16>(),
      .f32_int4 = make_int4_kernels<Isa, float>(),
  };
}

}  // namespace
}  // namespace twell
