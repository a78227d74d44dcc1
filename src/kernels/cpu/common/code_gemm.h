// The GEMM on a weight of codes. A few rows multiply them as integers (terms_gemm.h); for more,
// blocks of panels become numbers of x's own type first, in L1, for the GEMM that the tier has for
// those.
#pragma once

#include "kernels/cpu/common/gemm.h"
#include "kernels/cpu/common/int4_codes.h"
#include "kernels/cpu/common/int8_codes.h"
#include "kernels/cpu/common/terms_gemm.h"

namespace twell {
namespace {

// Those of a type.
template <class Isa, WeightType kType>
using CodesOf = std::conditional_t<kType == WeightType::int8, Int8Codes<Isa>, Int4Codes<Isa>>;

template <class Isa, class T, class Codes>
struct CodeGemm {
  using X = typename Isa::template X<T>;

  // Panels [first, first + Panels) of a block of inputs, from codes to numbers.
  template <int Panels>
  static void widen(const std::byte* block, std::int64_t stride, std::int64_t inputs, X* out) {
    for (int p = 0; p < Panels; ++p, block += stride, out += kPanel * inputs) {
      Codes::template widen<X>(block, inputs, out);
    }
  }

  // Each block of inputs of all panels.
  static void run_widened(const GemmArgs& args, void (*multiply)(const GemmArgs&)) {
    constexpr WeightType kType = weight_type(dtype_of<X>::value);
    alignas(64) X numbers[Isa::kGemmPanels * kPanel * kCodeBlock];
    const std::int64_t stride = panel_bytes(Codes::kType, args.weight.cols);
    const std::int64_t depth = packed_depth(Codes::kType, args.weight.cols);
    const auto* codes = static_cast<const std::byte*>(args.weight.data) + args.panel_begin * stride;
    GemmArgs part = args;
    part.panel_begin = 0;
    for_panel_blocks<Isa::kGemmPanels>(
        args.panels, code_blocks(args.weight.cols), false,
        [&]<int Panels>(PanelBlock at, PanelBlock /*next*/) {
          const std::int64_t k = at.block * kCodeBlock;
          const std::int64_t inputs = std::min(kCodeBlock, depth - k);
          widen<Panels>(codes + at.panel * stride + at.block * Codes::kBlockBytes, stride, inputs,
                        numbers);
          const std::int64_t bytes =
              args.x_block > 0 ? at.block * args.x_block : k * static_cast<std::int64_t>(sizeof(X));
          part.x = static_cast<const std::byte*>(args.x) + bytes;
          part.weight = {};
          part.weight.data = numbers;
          part.weight.type = kType;
          part.weight.layout = WeightLayout::panels;
          part.weight.rows = Panels * kPanel;
          part.weight.cols = part.weight.row_stride = inputs;
          part.panels = Panels;
          part.c = args.c + at.panel * kPanel;
          part.accumulate = args.accumulate || k > 0;
          multiply(part);
        });
  }

  // `multiply`: the tier's GEMM on weights of X.
  static void run(const GemmArgs& args, void (*multiply)(const GemmArgs&)) {
    if (args.terms != nullptr) {
      TermsGemm<Isa, Codes>::run(args);
    } else {
      run_widened(args, multiply);
    }
    scale(args);
  }
  static void run(const GemmArgs& args) { run(args, RegisterGemm<Isa, X>::run); }

  // c, by the neurons' scales.
  static void scale(const GemmArgs& args) {
    const float* scales = args.weight.scales + args.panel_begin * kPanel;
    for (std::int64_t r = 0; r < args.rows; ++r) {
      float* row = args.c + r * kSumStride;
      for (std::int64_t j = 0; j < args.panels * kPanel; j += Isa::kLanes) {
        Isa::store(row + j, Isa::mul(Isa::load(row + j), Isa::load(scales + j)));
      }
    }
  }
};

}  // namespace
}  // namespace twell
