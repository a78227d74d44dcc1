// gemm_relu_twell for few rows (decode): W is read once, straight into registers, at the speed of
// memory.
//
// A block takes 32 neurons; its eight warps take every eighth run of 64 or 128 inputs. Lane (g, t)
// of a warp loads 16 bytes of the rows of neurons g, g + 8, ... at inputs 8t: that is a fragment of
// mma's A operand as it stands, if the inputs are numbered so that the lane's words are the slots
// (2t, 2t + 1) and (2t + 8, 2t + 9) of two products. A sum does not care in which order its inputs
// come, as long as x's fragments use the same numbers, so neither operand passes through shared
// memory. The tensor cores idle mostly; what counts is 16 loads of 16 bytes in flight per lane.
#pragma once

#include "cuda/kernels/common/pack_epilogue.cuh"
#include "cuda/kernels/ptx/grid.cuh"

namespace twell::cuda {

template <bool kAligned>
__device__ __forceinline__ uint4 load_inputs(const std::uint16_t* row, int input, int depth,
                                             bool exists) {
  if constexpr (kAligned) {
    return exists && input < depth ? ptx::load_stream(row + input) : make_uint4(0, 0, 0, 0);
  } else {
    return exists && input < depth ? load_elements(row + input, depth - input)
                                   : make_uint4(0, 0, 0, 0);
  }
}

template <class T, class Tiles, bool kAligned>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kBlocks)
    gemm_relu_twell_stream_sm80(const __grid_constant__ GemmReluTwellArgs args) {
  constexpr int kNeuronRows = Tiles::kNeurons / 8;  // loads of a lane per 32 inputs
  constexpr int kTokenGroups = Tiles::kTokens / 8;
  constexpr int kHalves = Tiles::kRunInputs / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_col = static_cast<int>(blockIdx.x) * Tiles::kNeurons;
  clear_words<Tiles::kThreads>(args.cleared, args.cleared_words);
  ptx::launch_dependents();

  const std::uint16_t* weights = args.weight.data + (first_col + lane / 4) * args.weight.stride;
  const std::uint16_t* tokens = args.x.data + (lane / 4) * args.x.stride;
  float c[kNeuronRows / 2][kTokenGroups][4] = {};
  for (int k = warp * Tiles::kRunInputs; k < args.depth; k += Tiles::kWarps * Tiles::kRunInputs) {
    uint4 w[kHalves][kNeuronRows];
    uint4 x[kHalves][kTokenGroups];
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const int input = k + half * 32 + lane % 4 * kVector;
#pragma unroll
      for (int i = 0; i < kNeuronRows; ++i) {
        w[half][i] = load_inputs<kAligned>(weights + i * 8 * args.weight.stride, input, args.depth,
                                           first_col + lane / 4 + i * 8 < args.cols);
      }
#pragma unroll
      for (int i = 0; i < kTokenGroups; ++i) {
        x[half][i] = load_inputs<kAligned>(tokens + i * 8 * args.x.stride, input, args.depth,
                                           lane / 4 + i * 8 < args.rows);
      }
    }
    // Never true, which keeps the loads together: never() in common/gather.cuh.
    if constexpr (kAligned) {
      if (__any_sync(0xffffffffU, args.rows < 0)) return;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int i = 0; i < kNeuronRows / 2; ++i) {
        const uint4& upper = w[half][2 * i];
        const uint4& lower = w[half][2 * i + 1];
        const std::uint32_t a[2][4] = {{upper.x, lower.x, upper.y, lower.y},
                                       {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
        for (int j = 0; j < kTokenGroups; ++j) {
          T::mma(c[i][j], a[0], x[half][j].x, x[half][j].y);
          T::mma(c[i][j], a[1], x[half][j].z, x[half][j].w);
        }
      }
    }
  }

  // The warps' sums are added in the order of the warps.
  auto* sums = reinterpret_cast<float*>(ptx::dynamic_shared());
#pragma unroll
  for (int i = 0; i < kNeuronRows / 2; ++i) {
#pragma unroll
    for (int j = 0; j < kTokenGroups; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int neuron = i * 16 + lane / 4 + e / 2 * 8;
        const int token = j * 8 + lane % 4 * 2 + e % 2;
        sums[(warp * Tiles::kTokens + token) * Tiles::kSumStride + neuron] = c[i][j][e];
      }
    }
  }
  __syncthreads();
  auto* staged = reinterpret_cast<std::uint16_t*>(ptx::dynamic_shared() + Tiles::kSumBytes);
  for (int i = static_cast<int>(threadIdx.x); i < Tiles::kTokens * Tiles::kNeurons / 2;
       i += Tiles::kThreads) {
    const int token = i / (Tiles::kNeurons / 2);
    const int neuron = i % (Tiles::kNeurons / 2) * 2;
    float sum[2] = {};
#pragma unroll
    for (int w = 0; w < Tiles::kWarps; ++w) {
      const float* from = sums + (w * Tiles::kTokens + token) * Tiles::kSumStride + neuron;
      sum[0] += from[0];
      sum[1] += from[1];
    }
    const std::uint32_t pair =
        T::round2(activate(sum[0], first_col + neuron < args.cols, args.activation),
                  activate(sum[1], first_col + neuron + 1 < args.cols, args.activation));
    *reinterpret_cast<std::uint32_t*>(staged + token * Tiles::kStagedStride + neuron) = pair;
  }
  __syncthreads();
  pack_rows<Tiles::kNeurons, Tiles::kStagedStride, Tiles::kThreads>(staged, args.rows, 0, first_col,
                                                                    args.out);
}

}  // namespace twell::cuda
