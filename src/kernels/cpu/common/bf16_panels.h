// bf16 in panels, where a processor has no products of bf16: widened for each block of rows, not
// for each few of them.
#pragma once

#include "kernels/cpu/common/code_gemm.h"

namespace twell {
namespace {

// What CodeGemm asks of codes, of bf16.
template <class Isa>
struct Bf16Panels {
  static constexpr WeightType kType = WeightType::bf16;
  static constexpr std::int64_t kBlockBytes = kPanel * kCodeBlock * 2;

  // A word has two inputs of a neuron.
  template <class X>
  static void widen(const std::byte* block, std::int64_t inputs, X* out) {
    const auto* words = reinterpret_cast<const bf16*>(block);
    for (std::int64_t k = 0; k < inputs; k += 2, words += 2 * kPanel) {
      for (int i = 0; i < 2; ++i, out += kPanel) {
        for (std::int64_t n = 0; n < kPanel; n += Isa::kLanes) {
          Isa::store(out + n, Isa::load_input(words + 2 * n, i));
        }
      }
    }
  }
};

// The GEMM on a weight of T that is not of codes.
template <class Isa, class T>
void matrix_gemm(const GemmArgs& args) {
  if constexpr (Isa::kWidensBf16 && sizeof(T) == 2) {
    if (args.rows > Isa::kBf16Rows) {
      return CodeGemm<Isa, T, Bf16Panels<Isa>>::run_widened(args, RegisterGemm<Isa, float>::run);
    }
  }
  RegisterGemm<Isa, T>::run(args);
}

}  // namespace
}  // namespace twell
