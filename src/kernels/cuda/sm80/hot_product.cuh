// hot_product: h = g ⊙ u for the neurons that are multiplied densely; 0 wherever g is, whatever u.
#pragma once

#include "kernels/cuda/common/gate_source.cuh"

namespace twell::cuda {

// A thread takes eight neighbouring elements at a time; rows are padded to whole vectors.
template <class T, bool kWide>
__global__ void __launch_bounds__(kProductThreads)
    hot_product_sm80(const __grid_constant__ HotProductArgs args) {
  const int vectors = (args.cols + kVector - 1) / kVector;
  const std::int64_t all = static_cast<std::int64_t>(args.rows) * vectors;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
       i += step) {
    const std::int64_t row = i / vectors;
    const int column = static_cast<int>(i % vectors) * kVector;
    uint4 h = load_gate<T, kWide, true>(args.gate, row, column, args.cols);
    if (args.up != nullptr) {
      // Not a read-only load: `out` may be the same memory.
      const uint4 u = *reinterpret_cast<const uint4*>(args.up + row * args.up_stride + column);
      const auto product = [](std::uint32_t g, std::uint32_t u2) {
        const float low = (g & 0x7fffU) != 0 ? T::low(g) * T::low(u2) : 0.0F;
        const float high = (g & 0x7fff0000U) != 0 ? T::high(g) * T::high(u2) : 0.0F;
        return T::round2(low, high);
      };
      h = make_uint4(product(h.x, u.x), product(h.y, u.y), product(h.z, u.z), product(h.w, u.w));
    }
    ptx::store_16(args.out + row * args.out_stride + column, h);
  }
}

}  // namespace twell::cuda
