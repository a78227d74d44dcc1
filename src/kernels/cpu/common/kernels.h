// The tables of a tier from the templates of this folder.
#pragma once

#include "kernels/cpu/common/attention.h"
#include "kernels/cpu/common/bf16_panels.h"
#include "kernels/cpu/common/code_gemm.h"
#include "kernels/cpu/common/exponentials.h"
#include "kernels/cpu/common/gemm.h"
#include "kernels/cpu/common/ggml_kernels.h"
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
      .round_inputs = round_inputs<Isa, T>,
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
constexpr WeightKernels make_matrix_kernels() {
  return {
      .gemm = matrix_gemm<Isa, T>,
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
      .one_term_always = Isa::kOneTermAlways,
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
      .one_term_always = Isa::kOneTermAlways,
      .to_terms = to_terms<Isa, T, typename Codes::Term>,
      .screen_pack = nullptr,
      .sampled_dots = sampled_int4_dots<Isa, T>,
      .weighted_rows = nullptr,
      .pack_neurons = pack_int4_neurons<Isa, T>,
      .pack_inputs = nullptr,
      .row_finite = codes_finite,
  };
}

template <class Isa, class T, WeightType kType>
constexpr WeightKernels make_weight_kernels() {
  if constexpr (kType == WeightType::int8) return make_int8_kernels<Isa, T>();
  if constexpr (kType == WeightType::int4) return make_int4_kernels<Isa, T>();
  if constexpr (!has_scales(kType)) return make_matrix_kernels<Isa, T>();
}

template <class Isa, class T>
constexpr XKernels make_x_kernels() {
  return {make_kernels<Isa, T>(),
          by_weight<WeightKernels, dtype_of<T>::value>(
              []<WeightType kType>() { return make_weight_kernels<Isa, T, kType>(); })};
}

template <class Isa>
constexpr TierKernels make_tier() {
  return {make_x_kernels<Isa, bf16>(), make_x_kernels<Isa, float>(), make_ggml_kernels()};
}

}  // namespace
}  // namespace twell
