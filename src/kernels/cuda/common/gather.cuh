// What the gathers share: dot products with chosen rows of Wu, sums of chosen rows of Wd.
//
// A block works on one row of x. Its warps share the neurons of the dot products, each with x in
// registers and two rows of Wu in flight (8 KB at 2,048 inputs); then its threads share the columns
// of the sum, each with four rows of Wd in flight. So neither half needs a reduction between warps,
// and y stays in registers however many neurons a row has. Several blocks run on each SM, so that
// one loads while another waits.
#pragma once

#include "kernels/cuda/common/element.cuh"
#include "kernels/cuda/kernels.h"

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
  // Of weights at a time; assembling vectors from elements takes registers.
  constexpr int kRows = kAligned ? 2 : 1;
  constexpr int kAtOnce = kAligned ? 4 : 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll 1
  for (int first = 0; first < depth; first += kInputs) {
    uint4 inputs[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      inputs[v] = load_row_vector<kAligned>(x, first + (v * 32 + lane) * kVector, depth);
    }
    // What is in flight is said here; the compiler would unroll further, into registers it lacks.
#pragma unroll 1
    for (int i = warp * kRows; i < count; i += warps * kRows) {
      float sums[kRows] = {};
      const std::uint16_t* rows[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        rows[r] = up.data + list.neurons[min(i + r, count - 1)] * up.stride;
      }
#pragma unroll
      for (int begin = 0; begin < kVectors; begin += kAtOnce) {
        uint4 weights[kRows][kAtOnce];
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int v = 0; v < kAtOnce; ++v) {
            const int input = first + ((begin + v) * 32 + lane) * kVector;
            weights[r][v] = load_row_vector<kAligned>(rows[r], input, depth);
          }
        }
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int v = 0; v < kAtOnce; ++v) {
            add_products<T>(sums[r], inputs[begin + v], weights[r][v]);
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
#pragma unroll 1
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
        if (at < depth) ptx::store_16(row + at, make_uint4(words[0], words[1], words[2], words[3]));
      } else {
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          if (at + i < depth) row[at + i] = static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16);
        }
      }
    }
  }

  // Row `row` of sums in f32; rows are padded to whole vectors.
  __device__ __forceinline__ void load(const float* row, int first_column, int depth) {
#pragma unroll
    for (int i = 0; i < kThreadFloats; i += 4) {
      const int at = column(first_column, i / kVector);
      if (at >= depth) break;
      const float4 part = *reinterpret_cast<const float4*>(row + at + i % kVector);
      float* sum = y[i / kVector] + i % kVector;
      sum[0] = part.x;
      sum[1] = part.y;
      sum[2] = part.z;
      sum[3] = part.w;
    }
  }

  __device__ __forceinline__ void add(const RowSum& other) {
#pragma unroll
    for (int v = 0; v < kThreadVectors; ++v) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) y[v][i] += other.y[v][i];
    }
  }

  // A thread's own sums in shared memory: blockDim.x · kThreadFloats floats, laid out as below.
  __device__ __forceinline__ void store_own(float* to) const {
#pragma unroll
    for (int i = 0; i < kThreadFloats; i += 4) {
      const float* part = y[i / kVector] + i % kVector;
      *reinterpret_cast<float4*>(to + partial_at(i)) =
          make_float4(part[0], part[1], part[2], part[3]);
    }
  }
  __device__ __forceinline__ void load_own(const float* from) {
#pragma unroll
    for (int i = 0; i < kThreadFloats; i += 4) {
      const float4 part = *reinterpret_cast<const float4*>(from + partial_at(i));
      float* sum = y[i / kVector] + i % kVector;
      sum[0] = part.x;
      sum[1] = part.y;
      sum[2] = part.z;
      sum[3] = part.w;
    }
  }

  // Partial sums of a block lie as its threads hold them, 16 bytes of each thread in turn: every
  // access of a warp is 512 contiguous bytes. `from` has blockDim.x · kThreadFloats floats.
  __device__ __forceinline__ void store_partial(float* to) const {
#pragma unroll
    for (int i = 0; i < kThreadFloats; i += 4) {
      const float* part = y[i / kVector] + i % kVector;
      ptx::store_f4(to + partial_at(i), make_float4(part[0], part[1], part[2], part[3]));
    }
  }
  __device__ __forceinline__ void add_partial(const float* from) {
#pragma unroll
    for (int i = 0; i < kThreadFloats; i += 4) {
      const float4 part = ptx::load_other_block_f4(from + partial_at(i));
      float* sum = y[i / kVector] + i % kVector;
      sum[0] += part.x;
      sum[1] += part.y;
      sum[2] += part.z;
      sum[3] += part.w;
    }
  }

 private:
  static __device__ __forceinline__ int partial_at(int i) {
    return i * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x) * 4;
  }
};

// Where sums wait while the next dot products need the registers: behind the list.
__device__ __forceinline__ float* own_sums() {
  return reinterpret_cast<float*>(ptx::dynamic_shared() + sizeof(ActiveList));
}

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

}  // namespace twell::cuda
