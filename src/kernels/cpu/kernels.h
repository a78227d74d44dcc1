// The tables of the CPU tiers, and what AMX adds to that of AVX-512.
#pragma once

#include <array>
#include <utility>

#include "kernels/kernel.h"

namespace twell {

// A value for each type of weights, in their order: make<type>(), or none for one that does not go
// with x.
template <class T>
using ByWeight = std::array<T, kWeightTypes>;
template <class T, DType x, class Make>
constexpr ByWeight<T> by_weight(Make make) {
  const auto one = [&]<WeightType kType>() -> T {
    if constexpr (goes_with(x, kType)) return make.template operator()<kType>();
    return {};
  };
  return [&]<std::size_t... I>(std::index_sequence<I...>)->ByWeight<T> {
    return {one.template operator()<static_cast<WeightType>(I)>()...};
  }
  (std::make_index_sequence<kWeightTypes>());
}

// All that a tier has for x of one dtype.
struct XKernels : Kernels {
  ByWeight<WeightKernels> weights;
};
struct TierKernels {
  XKernels bf16, f32;
  GgmlKernels ggml;

  const XKernels& of(DType x) const { return x == DType::bf16 ? bf16 : f32; }
};

namespace portable {
extern const TierKernels kernels;
}
namespace avx2 {
extern const TierKernels kernels;
}
namespace avx512 {
extern const TierKernels kernels;
}
namespace amx {
// Up to here a stream through vector registers is bound by memory either way.
constexpr std::int64_t kVectorRows = 4;
constexpr XLayout kGemmX = {DType::bf16, kVectorRows + 1};
void gemm(const GemmArgs& args);
using Gemm = void (*)(const GemmArgs&);
extern const ByWeight<Gemm> gemms;  // of x in bf16
// Up to 16 rows vector registers are as fast: 5.5 times a dense layer at one, 3.6 at eight.
constexpr std::int64_t kScreenTilesFrom = 17;
void screen_gemm(const ScreenGemmArgs& args);
// In place of what AVX-512 has; `run` is null where AVX-512 is faster.
struct GgmlDenseRows {
  GgmlKernels::Rows* run = nullptr;
  double most_sparse = 0;
};
extern const std::array<GgmlDenseRows, kGgmlFormats> ggml_dense_rows;
extern const std::array<GgmlKernels::Rows*, kGgmlFormats> ggml_float_rows;
}  // namespace amx

}  // namespace twell
