// The GEMM with vector registers: one template for portable, AVX2 and AVX-512.
#pragma once

#include <algorithm>

#include "kernels/cpu/common/pack_epilogue.h"

namespace twell {
namespace {

template <class Isa, class T>
struct RegisterGemm {
  using V = typename Isa::V;
  using X = typename Isa::template X<T>;
  static constexpr std::int64_t kStep = sizeof(T) == 2 ? 2 : 1;  // inputs interleaved in a panel
  static constexpr int kVectors = kPanel / Isa::kLanes;
  // Inputs per pass: 4 panels × 256 bf16 are 32 KiB, which stay in L1 while the rows go by.
  static constexpr std::int64_t kDepthBlock = 512 / sizeof(T);

  // c[Rows × Panels·16] (+)= x[Rows × depth] · panels, the accumulators in registers throughout.
  template <int Rows, int Panels>
  static void micro(const X* x, std::int64_t x_stride, const T* panel, std::int64_t panel_stride,
                    std::int64_t depth, float* c, bool accumulate) {
    constexpr int kColumns = Panels * kVectors;
    V acc[Rows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        acc[r][v] = accumulate ? Isa::load(c + r * kColumnBlock + v * Isa::kLanes) : Isa::zero();
      }
    }
    for (std::int64_t k = 0; k < depth; k += kStep) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        const auto w = Isa::load_panel(panel + (v / kVectors) * panel_stride + k * kPanel +
                                       (v % kVectors) * Isa::kLanes * kStep);
#pragma GCC unroll 16
        for (int r = 0; r < Rows; ++r) acc[r][v] = Isa::mac(acc[r][v], w, x + r * x_stride + k);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        Isa::store(c + r * kColumnBlock + v * Isa::kLanes, acc[r][v]);
      }
    }
  }

  // The remaining `rows` < Rows rows of a block.
  template <int Rows, int Panels>
  static void micro_tail(std::int64_t rows, const X* x, std::int64_t x_stride, const T* panel,
                         std::int64_t panel_stride, std::int64_t depth, float* c, bool accumulate) {
    if constexpr (Rows > 1) {
      if (rows == Rows - 1) {
        micro<Rows - 1, Panels>(x, x_stride, panel, panel_stride, depth, c, accumulate);
      } else {
        micro_tail<Rows - 1, Panels>(rows, x, x_stride, panel, panel_stride, depth, c, accumulate);
      }
    }
  }

  template <int Panels>
  static void rows_by_panels(const X* x, std::int64_t x_stride, std::int64_t rows, const T* panel,
                             std::int64_t panel_stride, std::int64_t depth, float* c,
                             bool accumulate) {
    constexpr int kRows = Isa::kGemmRows;
    std::int64_t r = 0;
    for (; r + kRows <= rows; r += kRows) {
      micro<kRows, Panels>(x + r * x_stride, x_stride, panel, panel_stride, depth,
                           c + r * kColumnBlock, accumulate);
    }
    micro_tail<kRows, Panels>(rows - r, x + r * x_stride, x_stride, panel, panel_stride, depth,
                              c + r * kColumnBlock, accumulate);
  }

  static void run(const GemmArgs& args) {
    const std::int64_t depth = packed_depth(args.weight.dtype, args.weight.cols);
    const std::int64_t panel_stride = depth * kPanel;
    const T* weight = static_cast<const T*>(args.weight.data) + args.panel_begin * panel_stride;
    // A few rows only stream the weights once: one pass over the whole depth.
    const std::int64_t block = args.rows > Isa::kGemmRows ? kDepthBlock : depth;
    for (std::int64_t k = 0; k < depth; k += block) {
      const std::int64_t now = std::min(block, depth - k);
      const X* x = static_cast<const X*>(args.x) + k;
      const bool accumulate = args.accumulate || k > 0;
      std::int64_t p = 0;
      for (; p + Isa::kGemmPanels <= args.panels; p += Isa::kGemmPanels) {
        rows_by_panels<Isa::kGemmPanels>(x, args.x_stride, args.rows,
                                         weight + p * panel_stride + k * kPanel, panel_stride, now,
                                         args.c + p * kPanel, accumulate);
      }
      for (; p < args.panels; ++p) {
        rows_by_panels<1>(x, args.x_stride, args.rows, weight + p * panel_stride + k * kPanel,
                          panel_stride, now, args.c + p * kPanel, accumulate);
      }
    }
  }
};

template <class Isa, class T>
void gemm_and_pack(const GemmReluTwellArgs& args) {
  gemm_then_pack<Isa, T>(args, RegisterGemm<Isa, T>::run);
}
template <class Isa, class T>
constexpr GemmReluTwell gemm_relu_twell_registers() {
  return {dtype_of<typename Isa::template X<T>>::value, gemm_and_pack<Isa, T>};
}

template <class Isa, class T>
constexpr Gemm gemm_registers() {
  return {dtype_of<typename Isa::template X<T>>::value, RegisterGemm<Isa, T>::run};
}

}  // namespace
}  // namespace twell
