// The implementations in order of preference. Adding one is a line here.
#include "core/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

template <class Kernel>
struct Entry {
  CpuTier tier;
  const Kernel& bf16;
  const Kernel& f32;
};

// Best first. A tier without a line uses the next one down.
const Entry<GemmReluTwell> kGemmReluTwell[] = {
#if defined(TWELL_X86)
    {CpuTier::amx, amx::gemm_relu_twell_bf16, avx512::gemm_relu_twell_f32},
    {CpuTier::avx512, avx512::gemm_relu_twell_bf16, avx512::gemm_relu_twell_f32},
    {CpuTier::avx2, avx2::gemm_relu_twell_bf16, avx2::gemm_relu_twell_f32},
#endif
    {CpuTier::portable, portable::gemm_relu_twell_bf16, portable::gemm_relu_twell_f32},
};
const Entry<ScreenedGate> kScreenedGate[] = {
#if defined(TWELL_X86)
    {CpuTier::avx512, avx512::screened_gate_bf16, avx512::screened_gate_f32},
    {CpuTier::avx2, avx2::screened_gate_bf16, avx2::screened_gate_f32},
#endif
    {CpuTier::portable, portable::screened_gate_bf16, portable::screened_gate_f32},
};
const Entry<Gemm> kGemm[] = {
#if defined(TWELL_X86)
    {CpuTier::amx, amx::gemm_bf16, avx512::gemm_f32},
    {CpuTier::avx512, avx512::gemm_bf16, avx512::gemm_f32},
    {CpuTier::avx2, avx2::gemm_bf16, avx2::gemm_f32},
#endif
    {CpuTier::portable, portable::gemm_bf16, portable::gemm_f32},
};
const Entry<ChosenRows> kChosenRows[] = {
#if defined(TWELL_X86)
    {CpuTier::avx512, avx512::chosen_rows_bf16, avx512::chosen_rows_f32},
    {CpuTier::avx2, avx2::chosen_rows_bf16, avx2::chosen_rows_f32},
#endif
    {CpuTier::portable, portable::chosen_rows_bf16, portable::chosen_rows_f32},
};
const Entry<TwellGatedFfn> kTwellGatedFfn[] = {
#if defined(TWELL_X86)
    {CpuTier::avx512, avx512::twell_gated_ffn_bf16, avx512::twell_gated_ffn_f32},
    {CpuTier::avx2, avx2::twell_gated_ffn_bf16, avx2::twell_gated_ffn_f32},
#endif
    {CpuTier::portable, portable::twell_gated_ffn_bf16, portable::twell_gated_ffn_f32},
};
const Entry<TwellSpmm> kTwellSpmm[] = {
#if defined(TWELL_X86)
    {CpuTier::avx512, avx512::twell_spmm_bf16, avx512::twell_spmm_f32},
    {CpuTier::avx2, avx2::twell_spmm_bf16, avx2::twell_spmm_f32},
#endif
    {CpuTier::portable, portable::twell_spmm_bf16, portable::twell_spmm_f32},
};

template <class Kernel, std::size_t N>
const Kernel& choose(const Entry<Kernel> (&entries)[N], CpuTier tier, DType dtype) {
  TWELL_INVARIANT(dtype != DType::f16);
  for (const Entry<Kernel>& entry : entries) {
    if (entry.tier <= tier) return dtype == DType::bf16 ? entry.bf16 : entry.f32;
  }
  TWELL_INVARIANT(false);
}

}  // namespace

const GemmReluTwell& gemm_relu_twell_kernel(CpuTier tier, DType dtype) {
  return choose(kGemmReluTwell, tier, dtype);
}
const ScreenedGate& screened_gate_kernel(CpuTier tier, DType dtype) {
  return choose(kScreenedGate, tier, dtype);
}
const Gemm& gemm_kernel(CpuTier tier, DType dtype) { return choose(kGemm, tier, dtype); }
const ChosenRows& chosen_rows_kernel(CpuTier tier, DType dtype) {
  return choose(kChosenRows, tier, dtype);
}
const TwellGatedFfn& twell_gated_ffn_kernel(CpuTier tier, DType dtype) {
  return choose(kTwellGatedFfn, tier, dtype);
}
const TwellSpmm& twell_spmm_kernel(CpuTier tier, DType dtype) {
  return choose(kTwellSpmm, tier, dtype);
}

}  // namespace twell
