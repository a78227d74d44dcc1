// The GEMM with vector registers: one template for portable, AVX2 and AVX-512.
#pragma once

#include <algorithm>

#include "kernels/cpu/common/panel_blocks.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

template <class Isa, class T>
struct RegisterGemm {
  using V = typename Isa::V;
  using X = typename Isa::template X<T>;
  static constexpr std::int64_t kStep = 4 / sizeof(T);  // inputs interleaved in a panel
  static constexpr int kVectors = kPanel / Isa::kLanes;
  static constexpr bool kInt8 = sizeof(T) == 1;  // of a screen
  static constexpr int kRows = Isa::template kGemmRows<T>;
  // An input of the rows that meets all columns before the next one comes takes one register. By
  // columns, with 16 registers and no broadcast operands, compilers keep all rows' in memory.
  static constexpr bool kInputByInput = Isa::kInputByInput && !kInt8;
  // Inputs per pass. Of AVX-512 4 panels × 256 bf16 are 32 KiB, which stay in L1 while the rows go
  // by; of AVX2 one panel is in L2, and its rows of f32 in L1.
  static constexpr std::int64_t kDepthBlock =
      kInt8 ? kCodeBlock : Isa::kGemmDepth / static_cast<std::int64_t>(sizeof(T));
  // A block of a screen's panel starts with what its integer sums start from.
  static constexpr std::int64_t kHead = kInt8 ? kCodeHead : 0;

  // The scales of one block of x in 8 bits.
  struct Scales {
    const float* first = nullptr;
    std::int64_t stride = 0;  // from row to row

    Scales from_row(std::int64_t r) const { return {first + r * stride, stride}; }
  };

  static auto begin(const T* panel, const float* c, bool accumulate) {
    if constexpr (kInt8) {
      return Isa::screen_begin(panel);
    } else {
      return accumulate ? Isa::load(c) : Isa::zero();
    }
  }

  // c[Rows × Panels·16] (+)= x[Rows × depth] · panels, the accumulators in registers throughout:
  // floats, or integers that are scaled as they are stored. A panel's inputs of the same depth from
  // `ahead` on (null: none) are brought to L2 meanwhile: with 64 rows, whose weights come from L3,
  // that takes the GEMM from 0.8 to 1.0 of the rate at 512 rows.
  template <int Rows, int Panels>
  static void micro(const X* x, std::int64_t x_stride, const T* panel, std::int64_t panel_stride,
                    std::int64_t depth, float* c, bool accumulate, const T* ahead,
                    [[maybe_unused]] Scales scales) {
    constexpr int kColumns = Panels * kVectors;
    const auto part = [=](int v) {
      return panel + (v / kVectors) * panel_stride + (v % kVectors) * Isa::kLanes * kStep;
    };
    decltype(begin(panel, c, accumulate)) acc[Rows][kColumns];
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        acc[r][v] = begin(part(v), c + r * kSumStride + v * Isa::kLanes, accumulate);
      }
    }
    if constexpr (kInputByInput) {
      for (std::int64_t k = 0; k < depth; k += kStep) {
        if (ahead != nullptr) Isa::prefetch_l2(ahead + k * kPanel);
#pragma GCC unroll 2
        for (std::int64_t i = 0; i < kStep; ++i) {
          V w[kColumns];
#pragma GCC unroll 16
          for (int v = 0; v < kColumns; ++v) w[v] = Isa::load_input(part(v) + k * kPanel, i);
#pragma GCC unroll 16
          for (int r = 0; r < Rows; ++r) {
            const V input = Isa::broadcast(x[r * x_stride + k + i]);
#pragma GCC unroll 16
            for (int v = 0; v < kColumns; ++v) acc[r][v] = Isa::fma(w[v], input, acc[r][v]);
          }
        }
      }
    } else {
      for (std::int64_t k = 0; k < depth; k += kStep) {
        if (ahead != nullptr) Isa::prefetch_l2(ahead + k * kPanel);
#pragma GCC unroll 16
        for (int v = 0; v < kColumns; ++v) {
          const auto w = Isa::load_panel(part(v) + (kHead + k) * kPanel);
#pragma GCC unroll 16
          for (int r = 0; r < Rows; ++r) acc[r][v] = Isa::mac(acc[r][v], w, x + r * x_stride + k);
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kColumns; ++v) {
        float* to = c + r * kSumStride + v * Isa::kLanes;
        if constexpr (kInt8) {
          const V before = accumulate ? Isa::load(to) : Isa::zero();
          const V scale = Isa::broadcast(scales.first[r * scales.stride]);
          Isa::store(to, Isa::fma(Isa::to_float(acc[r][v]), scale, before));
        } else {
          Isa::store(to, acc[r][v]);
        }
      }
    }
  }

  // The remaining `rows` < Rows rows of a block.
  template <int Rows, int Panels>
  static void micro_tail(std::int64_t rows, const X* x, std::int64_t x_stride, const T* panel,
                         std::int64_t panel_stride, std::int64_t depth, float* c, bool accumulate,
                         Scales scales) {
    if constexpr (Rows > 1) {
      if (rows == Rows - 1) {
        micro<Rows - 1, Panels>(x, x_stride, panel, panel_stride, depth, c, accumulate, nullptr,
                                scales);
      } else {
        micro_tail<Rows - 1, Panels>(rows, x, x_stride, panel, panel_stride, depth, c, accumulate,
                                     scales);
      }
    }
  }

  template <int Panels>
  static void rows_by_panels(const X* x, std::int64_t x_stride, std::int64_t rows, const T* panel,
                             std::int64_t panel_stride, std::int64_t depth, float* c,
                             bool accumulate, const T* next, Scales scales = {}) {
    std::int64_t r = 0;
    for (int p = 0; r + kRows <= rows; r += kRows, ++p) {
      const T* ahead = next != nullptr && p < Panels ? next + p * panel_stride : nullptr;
      micro<kRows, Panels>(x + r * x_stride, x_stride, panel, panel_stride, depth,
                           c + r * kSumStride, accumulate, ahead, scales.from_row(r));
    }
    micro_tail<kRows, Panels>(rows - r, x + r * x_stride, x_stride, panel, panel_stride, depth,
                              c + r * kSumStride, accumulate, scales.from_row(r));
  }

  // A few rows wait for the weights, and read them from end to end: 8 rows of bf16 are 6 to 30 %
  // faster by it on one core of a Zen 4, 20 no faster.
  static bool end_to_end(std::int64_t rows) { return rows < 3 * kRows; }

  static void run(const GemmArgs& args) {
    const std::int64_t depth = packed_depth(weight_type(dtype_of<T>::value), args.weight.cols);
    const std::int64_t stride = depth * kPanel;
    const T* weight = static_cast<const T*>(args.weight.data) + args.panel_begin * stride;
    const std::int64_t panels_there = packed_panels(args.weight.rows) - args.panel_begin;
    // Rows that one pass takes read the weights once: there is nothing to keep in L1.
    const std::int64_t block = args.rows > kRows ? kDepthBlock : depth;
    const auto panel_at = [&](PanelBlock at) {
      return weight + at.panel * stride + at.block * block * kPanel;
    };
    for_panel_blocks<Isa::kGemmPanels>(
        args.panels, (depth + block - 1) / block, end_to_end(args.rows),
        [&]<int Panels>(PanelBlock at, PanelBlock next) {
          const std::int64_t k = at.block * block;
          rows_by_panels<Panels>(static_cast<const X*>(args.x) + k, args.x_stride, args.rows,
                                 panel_at(at), stride, std::min(block, depth - k),
                                 args.c + at.panel * kPanel, args.accumulate || k > 0,
                                 next.panel + Panels <= panels_there ? panel_at(next) : nullptr);
        });
  }

  // int8: one block of inputs after the other, each with its scales.
  static void run_screen(const ScreenGemmArgs& args) {
    constexpr std::int64_t kBlockBytes = kPanel * (kDepthBlock + kHead);
    const std::int64_t stride = code_panel_bytes(args.screen.cols);
    const std::int64_t depth = code_depth(args.screen.cols);
    const std::int64_t blocks = code_blocks(args.screen.cols);
    const T* screen = args.screen.panel(args.panel_begin);
    const std::int64_t panels_there = packed_panels(args.screen.rows) - args.panel_begin;
    const auto panel_at = [&](PanelBlock at) {
      return screen + at.panel * stride + at.block * kBlockBytes;
    };
    for_panel_blocks<Isa::kGemmPanels>(
        args.panels, blocks, end_to_end(args.rows),
        [&]<int Panels>(PanelBlock at, PanelBlock next) {
          const std::int64_t k = at.block * kDepthBlock;
          rows_by_panels<Panels>(args.x.x8 + k, depth, args.rows, panel_at(at), stride,
                                 std::min(kDepthBlock, depth - k), args.c + at.panel * kPanel,
                                 k > 0,
                                 next.panel + Panels <= panels_there ? panel_at(next) : nullptr,
                                 {args.x.scales + at.block, blocks});
        });
  }
};

}  // namespace
}  // namespace twell
