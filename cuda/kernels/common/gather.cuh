// What the gathers share: dot products with chosen rows of Wu, sums of chosen rows of Wd.
//
// A block works on one row of x. Its warps share the neurons of the dot products, each with two
// rows of Wu in flight (8 KB at 2,048 inputs); then its threads share the columns of the sum, each
// with four rows of Wd in flight. So neither half needs a reduction between warps. Several blocks
// run on each SM, so that one loads while another waits.
#pragma once

#include "cuda/kernels/common/element.cuh"
#include "cuda/kernels/kernels.h"

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

// The products of eight neighbouring inputs, added in order.
template <class T>
__device__ __forceinline__ void add_products(float& sum, const float4 (&x)[2], const uint4& w) {
  sum = fmaf(x[0].x, T::low(w.x), sum);
  sum = fmaf(x[0].y, T::high(w.x), sum);
  sum = fmaf(x[0].z, T::low(w.y), sum);
  sum = fmaf(x[0].w, T::high(w.y), sum);
  sum = fmaf(x[1].x, T::low(w.z), sum);
  sum = fmaf(x[1].y, T::high(w.z), sum);
  sum = fmaf(x[1].z, T::low(w.w), sum);
  sum = fmaf(x[1].w, T::high(w.w), sum);
}

__device__ __forceinline__ float sum_of_warp(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  return value;
}

// False, since no neuron has a number below 0, but ptxas does not know. It has as few as two of a
// thread's loads wait for their products before it issues the next ones, and moves none below a
// branch: one between loads and products keeps all of them in flight.
__device__ __forceinline__ bool never(const ActiveList& list) {
  return __any_sync(0xffffffffU, list.neurons[0] < 0);
}

// A run of x, widened: the first four values of every vector of eight, then the last four, so that
// a warp's loads are 512 contiguous bytes.
template <class T, bool kAligned, int kAhead = kAligned ? 2 : 1>
__device__ __forceinline__ void stage_inputs(float4* to, const std::uint16_t* x, int first,
                                             int depth) {
  const int threads = static_cast<int>(blockDim.x);
  for (int begin = static_cast<int>(threadIdx.x); begin < kDotVectors; begin += kAhead * threads) {
    uint4 v[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int i = begin + n * threads;
      v[n] = load_row_vector<kAligned>(x, i < kDotVectors ? first + i * kVector : depth, depth);
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int i = begin + n * threads;
      if (i >= kDotVectors) break;
      to[i] = make_float4(T::low(v[n].x), T::high(v[n].x), T::low(v[n].y), T::high(v[n].y));
      to[kDotVectors + i] =
          make_float4(T::low(v[n].z), T::high(v[n].z), T::low(v[n].w), T::high(v[n].w));
    }
  }
}

// dots[i] = x · W[neurons[i]] for the window's `count` neurons, and values[i], if it was g, is h of
// g and this u; if it was 1, the dot product. Begins with a barrier for the window too; its results
// want one after it.
//
// x is read from shared memory, since in registers it would leave no room for the 16 loads of 16
// bytes of W that a thread has in flight. stage(first) brings its inputs from `first` on there.
template <class T, bool kAligned, class Stage>
__device__ __forceinline__ void dot_products(ActiveList& list, int count, const DeviceMatrix& up,
                                             int depth, Stage stage) {
  // Of weights at a time; assembling vectors from elements takes registers.
  constexpr int kRows = kAligned ? 2 : 1;
  constexpr int kAtOnce = kAligned ? kDotVectors / 32 : 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  for (int first = 0; first < depth; first += kDotInputs) {
    if (first > 0) __syncthreads();  // until all are done with the run before
    stage(first);
    __syncthreads();
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
      for (int begin = 0; begin < kDotVectors / 32; begin += kAtOnce) {
        uint4 weights[kRows][kAtOnce];
#pragma unroll
        for (int v = 0; v < kAtOnce; ++v) {
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const int input = first + ((begin + v) * 32 + lane) * kVector;
            weights[r][v] = load_row_vector<kAligned>(rows[r], input, depth);
          }
        }
        if constexpr (kAligned) {
          if (never(list)) return;
        }
#pragma unroll
        for (int v = 0; v < kAtOnce; ++v) {
          const int at = (begin + v) * 32 + lane;
          const float4 inputs[2] = {list.inputs[at], list.inputs[kDotVectors + at]};
#pragma unroll
          for (int r = 0; r < kRows; ++r) add_products<T>(sums[r], inputs, weights[r][v]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float sum = sum_of_warp(sums[r]);
        if (lane == 0 && i + r < count) {
          const float dot = first == 0 ? sum : list.dots[i + r] + sum;
          list.dots[i + r] = dot;
          if (first + kDotInputs >= depth) {
            list.values[i + r] = combine(kPlainUp, list.values[i + r], dot);
          }
        }
      }
    }
  }
}

// Of x in memory; for kernels that have registers for one load of it at a time.
template <class T, bool kAligned>
__device__ __forceinline__ void dot_products(ActiveList& list, int count, const std::uint16_t* x,
                                             const DeviceMatrix& up, int depth) {
  dot_products<T, kAligned>(list, count, up, depth, [&](int first) {
    stage_inputs<T, kAligned, 1>(list.inputs, x, first, depth);
  });
}

// The sums of a group of columns of one row, f32, in shared memory behind the list: they wait there
// while dot products need the registers, and a block takes more columns than its registers hold.
// A thread's sums are its own: nothing here needs a barrier.
class BlockSums {
 public:
  __device__ __forceinline__ BlockSums(int first_column, int depth)
      : sums_(reinterpret_cast<float*>(ptx::dynamic_shared() + sizeof(ActiveList))),
        first_column_(first_column),
        depth_(depth) {}

  // Of all the parts of a group: 16 floats of each thread for as many columns.
  static __device__ __forceinline__ int floats(int depth) {
    const int width = part_columns();
    return (min(depth, kGatherColumns) + width - 1) / width * width;
  }

  __device__ __forceinline__ void clear() {
    for (int i = 0; i < floats(depth_); i += stride()) *own(i) = make_float4(0, 0, 0, 0);
  }
  // A row of sums in f32, padded to whole vectors.
  __device__ __forceinline__ void add_row(const float* row) {
    for (int part = 0; part < parts(); ++part) {
      float4 v[kThreadFloats / 4];
#pragma unroll
      for (int i = 0; i < kThreadFloats; i += 4) {
        const int at = column(part, i / kVector) + i % kVector;
        v[i / 4] =
            at < depth_ ? *reinterpret_cast<const float4*>(row + at) : make_float4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kThreadFloats; i += 4) add(*own(part, i), v[i / 4]);
    }
  }

  // sums += Σ values[i] W[neurons[i]] over the window.
  template <class T, bool kAligned>
  __device__ __forceinline__ void add(const ActiveList& list, int count, const DeviceMatrix& down) {
#pragma unroll 1
    for (int part = 0; part < parts(); ++part) {
      float y[kThreadVectors][kVector];
      load(part, y);
      add_rows<T, kAligned>(y, list, count, down, part);
#pragma unroll
      for (int i = 0; i < kThreadFloats; i += 4) {
        const float* from = y[i / kVector] + i % kVector;
        *own(part, i) = make_float4(from[0], from[1], from[2], from[3]);
      }
    }
  }

  // Rounded into a row of the output.
  template <class T, bool kAligned>
  __device__ __forceinline__ void store(std::uint16_t* row) const {
    for (int part = 0; part < parts(); ++part) {
      float y[kThreadVectors][kVector];
      load(part, y);
#pragma unroll
      for (int v = 0; v < kThreadVectors; ++v)
        store_vector<T, kAligned>(row, column(part, v), y[v]);
    }
  }

  // Partial sums of a block lie as its threads hold them, 16 bytes of each thread in turn: every
  // access of a warp is 512 contiguous bytes.
  __device__ __forceinline__ void store_partial(float* to) const {
    for (int i = 0; i < floats(depth_); i += stride()) ptx::store_f4(to + place(i), *own(i));
  }
  __device__ __forceinline__ void add_partial(const float* from) {
    for (int i = 0; i < floats(depth_); i += stride()) {
      add(*own(i), ptx::load_other_block_f4(from + place(i)));
    }
  }
  // Those of `count` blocks, `step` floats apart, in their order. One load after the other, of 11
  // blocks, took 13 µs on an H100.
  __device__ __forceinline__ void add_partials(const float* from, std::int64_t step, int count) {
    constexpr int kAhead = 8;
    for (int i = 0; i < floats(depth_); i += stride()) {
      float4 sum = *own(i);
      for (int first = 0; first < count; first += kAhead) {
        float4 v[kAhead];
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
          if (first + n < count) {
            v[n] = ptx::load_other_block_f4(from + (first + n) * step + place(i));
          }
        }
#pragma unroll
        for (int n = 0; n < kAhead; ++n) {
          if (first + n < count) add(sum, v[n]);
        }
      }
      *own(i) = sum;
    }
  }

 private:
  static __device__ __forceinline__ void add(float4& sum, const float4& v) {
    sum.x += v.x;
    sum.y += v.y;
    sum.z += v.z;
    sum.w += v.w;
  }
  static __device__ __forceinline__ int threads() { return static_cast<int>(blockDim.x); }
  static __device__ __forceinline__ int stride() { return threads() * 4; }
  static __device__ __forceinline__ int part_columns() { return threads() * kThreadFloats; }
  static __device__ __forceinline__ int place(int i) {
    return i + static_cast<int>(threadIdx.x) * 4;
  }
  __device__ __forceinline__ int parts() const {
    const int columns = min(depth_ - first_column_, kGatherColumns);
    return (columns + part_columns() - 1) / part_columns();
  }
  // The column of a thread's vector of eight: its vectors of a part are a block's width apart.
  __device__ __forceinline__ int column(int part, int vector) const {
    return first_column_ + part * part_columns() +
           (vector * threads() + static_cast<int>(threadIdx.x)) * kVector;
  }
  __device__ __forceinline__ float4* own(int i) const {
    return reinterpret_cast<float4*>(sums_ + place(i));
  }
  // Floats i … i + 3 of the thread's 16 of a part.
  __device__ __forceinline__ float4* own(int part, int i) const {
    return own(part * part_columns() + i / 4 * stride());
  }

  __device__ __forceinline__ void load(int part, float (&y)[kThreadVectors][kVector]) const {
#pragma unroll
    for (int i = 0; i < kThreadFloats; i += 4) {
      const float4 v = *own(part, i);
      float* to = y[i / kVector] + i % kVector;
      to[0] = v.x;
      to[1] = v.y;
      to[2] = v.z;
      to[3] = v.w;
    }
  }

  template <class T, bool kAligned>
  __device__ __forceinline__ void add_rows(float (&y)[kThreadVectors][kVector],
                                           const ActiveList& list, int count,
                                           const DeviceMatrix& down, int part) const {
    constexpr int kRows = 4;  // in flight
#pragma unroll 1
    for (int i = 0; i < count; i += kRows) {
      uint4 weights[kRows][kThreadVectors];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const std::uint16_t* row = down.data + list.neurons[min(i + r, count - 1)] * down.stride;
#pragma unroll
        for (int v = 0; v < kThreadVectors; ++v) {
          weights[r][v] = load_row_vector<kAligned>(row, column(part, v), depth_);
        }
      }
      if constexpr (kAligned) {
        if (never(list)) return;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (i + r >= count) break;
        const float h = list.values[i + r];
#pragma unroll
        for (int v = 0; v < kThreadVectors; ++v) add_product<T>(y[v], h, weights[r][v]);
      }
    }
  }

  template <class T>
  static __device__ __forceinline__ void add_product(float (&y)[kVector], float h, const uint4& w) {
    const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[2 * i] = fmaf(h, T::low(words[i]), y[2 * i]);
      y[2 * i + 1] = fmaf(h, T::high(words[i]), y[2 * i + 1]);
    }
  }

  template <class T, bool kAligned>
  __device__ __forceinline__ void store_vector(std::uint16_t* row, int at,
                                               const float (&y)[kVector]) const {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = T::round2(y[2 * i], y[2 * i + 1]);
    if constexpr (kAligned) {
      if (at < depth_) ptx::store_16(row + at, make_uint4(words[0], words[1], words[2], words[3]));
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (at + i < depth_) row[at + i] = static_cast<std::uint16_t>(words[i / 2] >> i % 2 * 16);
      }
    }
  }

  float* sums_;
  int first_column_;
  int depth_;
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

}  // namespace twell::cuda
