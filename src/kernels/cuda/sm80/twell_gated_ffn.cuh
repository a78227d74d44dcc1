// twell_gated_ffn and twell_spmm: y = Σ h[n] Wd[n] over a row's active neurons n, with
// h[n] = g[n] (x · Wu[n]) or given.
//
// A block works on one row. Its warps share the neurons of the dot products, each with x in
// registers and two rows of Wu in flight (8 KB at 2,048 inputs); then its threads share the columns
// of the sum, each with four rows of Wd in flight. So neither half needs a reduction between warps,
// and y stays in registers however many neurons a row has. Several blocks run on each SM, so that
// one loads while another waits.
//
// With few rows, several blocks share a row: each writes its partial sum, and the last one to
// finish adds them in the order of the blocks.
#pragma once

#include "kernels/cuda/common/active_list.cuh"
#include "kernels/cuda/ptx/grid.cuh"

namespace twell::cuda {

template <bool kAligned>
__device__ __forceinline__ uint4 load_row_vector(const std::uint16_t* row, int column, int depth) {
  if (column >= depth) return make_uint4(0, 0, 0, 0);
  if constexpr (kAligned) {
    return ptx::load_shared_row(row + column);
  } else {
    return load_elements(row + column, depth - column);
  }
}

template <class T>
__device__ __forceinline__ void add_products(float& sum, const uint4& a, const uint4& b) {
  const std::uint32_t x[4] = {a.x, a.y, a.z, a.w};
  const std::uint32_t y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(T::low(x[i]), T::low(y[i]), sum);
    sum = fmaf(T::high(x[i]), T::high(y[i]), sum);
  }
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  return value;
}

// values[i] *= x · W[neurons[i]] for the window's `count` neurons.
template <class T, bool kAligned>
__device__ __forceinline__ void dot_products(ActiveList& list, int count, const std::uint16_t* x,
                                             const DeviceMatrix& up, int depth) {
  constexpr int kVectors = 8;
  constexpr int kInputs = kVectors * 32 * kVector;  // 2,048 at a time
  constexpr int kRows = kAligned ? 2 : 1;  // assembling vectors from elements takes registers
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int first = 0; first < depth; first += kInputs) {
    uint4 inputs[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      inputs[v] = load_row_vector<kAligned>(x, first + (v * 32 + lane) * kVector, depth);
    }
    for (int i = warp * kRows; i < count; i += warps * kRows) {
      float sums[kRows] = {};
      const std::uint16_t* rows[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        rows[r] = up.data + list.neurons[min(i + r, count - 1)] * up.stride;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 weights[kRows][kVectors / 2];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int v = 0; v < kVectors / 2; ++v) {
            const int vector = half * (kVectors / 2) + v;
            weights[r][v] =
                load_row_vector<kAligned>(rows[r], first + (vector * 32 + lane) * kVector, depth);
          }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int v = 0; v < kVectors / 2; ++v) {
            add_products<T>(sums[r], inputs[half * (kVectors / 2) + v], weights[r][v]);
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = sum_of_warp(sums[r]);
        if (lane == 0 && i + r < count) {
          const float dot = first == 0 ? sum : list.dots[i + r] + sum;
          list.dots[i + r] = dot;
          if (first + kInputs >= depth) list.values[i + r] *= dot;
        }
      }
    }
  }
}

// A thread's columns: kThreadVectors runs of eight, a block's width apart.
struct RowSum {
  float y[kThreadVectors][kVector] = {};

  static __device__ __forceinline__ int column(int first_column, int v) {
    return first_column +
           (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
  }

  // y += Σ values[i] W[neurons[i]] over the window.
  template <class T, bool kAligned>
  __device__ __forceinline__ void add(const ActiveList& list, int count, const DeviceMatrix& down,
                                      int first_column, int depth) {
    constexpr int kRows = 4;
    for (int i = 0; i < count; i += kRows) {
      uint4 weights[kRows][kThreadVectors];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const std::uint16_t* row = down.data + list.neurons[min(i + r, count - 1)] * down.stride;
#pragma unroll
        for (int v = 0; v < kThreadVectors; ++v) {
          weights[r][v] = load_row_vector<kAligned>(row, column(first_column, v), depth);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r >= count) break;
        const float h = list.values[i + r];
#pragma unroll
        for (int v = 0; v < kThreadVectors; ++v) add_row<T>(y[v], h, weights[r][v]);
      }
    }
  }

  template <class T>
  static __device__ __forceinline__ void add_row(float (&y)[kVector], float h, const uint4& w) {
    const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[2 * i] = fmaf(h, T::low(words[i]), y[2 * i]);
      y[2 * i + 1] = fmaf(h, T::high(words[i]), y[2 * i + 1]);
    }
  }

  // Rounded into a row of the output.
  template <class T, bool kAligned>
  __device__ __forceinline__ void store(std::uint16_t* row, int first_column, int depth) const {
#pragma unroll
    for (int v = 0; v < kThreadVectors; ++v) {
      const int at = column(first_column, v);
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = T::round2(y[v][2 * i], y[v][2 * i + 1]);
      if constexpr (kAligned) {
        if (at < depth) {
          *reinterpret_cast<uint4*>(row + at) = make_uint4(words[0], words[1], words[2], words[3]);
        }
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (at + i < depth) row[at + i] = static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16);
        }
      }
    }
  }

  // Partial sums: rows of `depth` floats.
  __device__ __forceinline__ void store_partial(float* row, int first_column, int depth) const {
#pragma unroll
    for (int v = 0; v < kThreadVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (column(first_column, v) + i < depth) row[column(first_column, v) + i] = y[v][i];
      }
    }
  }
  __device__ __forceinline__ void add_partial(const float* row, int first_column, int depth) {
#pragma unroll
    for (int v = 0; v < kThreadVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (column(first_column, v) + i < depth) {
          y[v][i] += ptx::load_other_block(row + column(first_column, v) + i);
        }
      }
    }
  }
};

// True in the block that finishes a row's column pass last, once every block's partial sum can be
// read.
__device__ __forceinline__ bool last_of_row(ActiveList& list, std::uint32_t* ticket, int splits) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) list.ticket = atomicAdd(ticket, 1U);
  __syncthreads();
  const bool last = list.ticket == static_cast<std::uint32_t>(splits) - 1;
  if (last) __threadfence();
  return last;
}

// Few rows find the weights in device memory: the rows of Wd that the window will need travel to L2
// while its dot products wait for those of Wu.
__device__ __forceinline__ void prefetch_rows(const ActiveList& list, int count,
                                              const DeviceMatrix& down, int depth) {
  constexpr int kLine = 64;  // elements
  const int lines = (depth + kLine - 1) / kLine;
  for (int i = static_cast<int>(threadIdx.x); i < count * lines;
       i += static_cast<int>(blockDim.x)) {
    ptx::prefetch_l2(down.data + list.neurons[i / lines] * down.stride + i % lines * kLine);
  }
}

// Grid: splits × rows (folded into x) × column passes (y).
template <class T, bool kGated, bool kAligned>
__global__ void __launch_bounds__(kGatherThreads)
    twell_gather_sm80(const __grid_constant__ TwellGatherArgs args) {
  auto& list = *reinterpret_cast<ActiveList*>(ptx::dynamic_shared());
  const int row = static_cast<int>(blockIdx.x) / args.splits;
  const int split = static_cast<int>(blockIdx.x) % args.splits;
  const int first_column = static_cast<int>(blockIdx.y) * kGatherColumns;
  const bool reports = blockIdx.y == 0;
  const std::uint16_t* x = kGated ? args.x.data + row * args.x.stride : nullptr;
  RowSum sum;
  int row_nnz = 0;
  ptx::wait_for_previous();
  for (int tile = 0; tile < args.gate.tiles; tile += kGroupTiles) {
    const int tiles = min(kGroupTiles, args.gate.tiles - tile);
    const int total = scan_counts(
        list, args.gate.counts + static_cast<std::int64_t>(row) * args.gate.tiles + tile, tiles);
    row_nnz += total;
    // This block's share of the group. (total · splits may pass 2³¹.)
    const int begin = static_cast<int>(static_cast<std::int64_t>(total) * split / args.splits);
    const int end = static_cast<int>(static_cast<std::int64_t>(total) * (split + 1) / args.splits);
    for (int window = begin; window < end; window += kWindow) {
      const int count = min(kWindow, end - window);
      fill_window<T>(list, args.gate, row, tile, tiles, window, count);
      __syncthreads();
      if (args.neuron_counts != nullptr && reports) {
        for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
          atomicAdd(args.neuron_counts + list.neurons[i], 1ULL);
        }
      }
      if constexpr (kGated) {
        if (args.splits > 1) prefetch_rows(list, count, args.down, args.depth);
        dot_products<T, kAligned>(list, count, x, args.up, args.depth);
        __syncthreads();
      }
      sum.template add<T, kAligned>(list, count, args.down, first_column, args.depth);
      __syncthreads();
    }
  }
  if (args.row_nnz != nullptr && reports && split == 0 && threadIdx.x == 0) {
    args.row_nnz[row] = row_nnz;
  }
  if (args.splits > 1) {
    const std::int64_t first = static_cast<std::int64_t>(row) * args.splits;
    sum.store_partial(args.partial + (first + split) * args.depth, first_column, args.depth);
    std::uint32_t* ticket = args.tickets + row * static_cast<std::int64_t>(gridDim.y) + blockIdx.y;
    if (!last_of_row(list, ticket, args.splits)) return;
    sum = RowSum{};
    for (int s = 0; s < args.splits; ++s) {
      sum.add_partial(args.partial + (first + s) * args.depth, first_column, args.depth);
    }
  }
  sum.template store<T, kAligned>(args.y + row * args.y_stride, first_column, args.depth);
}

}  // namespace twell::cuda
