// hot_product: h of g and u for the neurons that are multiplied densely; 0 wherever g is, whatever
// u.
#pragma once

#include "cuda/kernels/common/gate_source.cuh"

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
    const RawVector<kWide> raw = load_raw<kWide, true>(args.gate, row, column, args.cols);
    const uint4 g = args.gate.activates
                        ? activated_vector<T, kWide>(args.gate, raw, column, args.cols)
                        : raw.words[0];  // whole vectors of 16-bit values
    const std::int64_t place = row * args.stride + column;
    float u[kVector];
    // Not a read-only load: `out` may be the same memory.
    widen<T>(*reinterpret_cast<const uint4*>(args.up + place), u);
    ptx::store_16(args.out + place, masked_hidden<T>(g, u));
  }
}

}  // namespace twell::cuda
