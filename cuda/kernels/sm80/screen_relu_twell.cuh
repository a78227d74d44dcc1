// gemm_relu_twell for few rows by way of a screen: an int8 copy of W, half its bytes, proves of
// most neurons that they do not fire; the others are computed from W itself.
//
// In a run b of 256 inputs x is split into s_b along the screen's axis a_b and the rest r_b, and
// r_b is rounded to r̂_b, int8 with a scale for the run and token. With ŵ, int8 with a scale for
// each neuron,
//   w·x = Σ_b s_b (w·a_b) + w·r,   w·r ≤ ŵ·r̂ + ‖ŵ‖ ‖r − r̂‖ + ‖w − ŵ‖ ‖r‖
// by the Cauchy-Schwarz inequality. (twell/screen.h takes one s for all inputs. One for each run
// needs no other warp, leaves less of x, and costs 1/64 of the screen's bytes for w·a_b.)
//
// A block takes 32 neurons, its eight warps every eighth run each: at 2,048 inputs one. A lane has
// 16 copies of 16 bytes of its run under way to shared memory, the whole screen is under way on the
// GPU, before it looks at x. So rounding x, 870 instructions of a warp for eight tokens and a run,
// hides behind memory up to 16 tokens, and is done by every block for itself: a kernel that did it
// once would take 1.2 µs to start and 2 µs for its own reads that wait for one another. Copies
// leave the registers to what a lane has of x: 64 values, which it reads and widens once. Levels
// lie in memory as mma's A operand wants them, so that a copy is 512 bytes on end; x becomes a B
// operand in the lane that rounds it.
//
// What rounding in f32 adds to the bound is σ (‖ŵ‖ + ‖w − ŵ‖) (‖r‖ + S), S² = Σ s_b². Integer sums
// are below 2²³, so exact in f32, and those of ‖r̂‖² are too; ‖r‖ is taken as ‖r̂‖ + ‖r − r̂‖, which
// it cannot exceed. r is rounded once, by 2⁻²⁴ of it; r − r̂ in units of the scale is an FMA of r
// and the scale's inverse, each rounded by 2⁻²⁴, so r̂ is beside the levels times the scale by less
// than 2⁻²² of r. Any s serves, since it is rounded no more once r is made with it. Sums over runs
// round three times a run and 20 times more, by 2⁻²⁴ each of ‖ŵ‖ ‖r̂‖ + S ‖w‖ at most. σ = 2⁻¹⁵ +
// 2⁻²² runs is more than all of it. Norms of x are 1 % too large, more than their sums' rounding;
// those of W are rounded up where they are made. Squares of runs that are too small for f32 are
// below σ of the whole while a token's largest value is 2⁻²⁰ at least; other tokens, except zeros,
// are ruled out nowhere.
#pragma once

#include "cuda/kernels/common/gather.cuh"
#include "cuda/kernels/common/pack_epilogue.cuh"
#include "cuda/kernels/ptx/grid.cuh"

namespace twell::cuda {

template <class V>
__device__ __forceinline__ V sum_of_four(V v) {
  v += __shfl_xor_sync(0xffffffffU, v, 1);
  return v + __shfl_xor_sync(0xffffffffU, v, 2);
}
__device__ __forceinline__ float largest_of_four(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffU, v, 2));
}

// What a lane has of a token's run: of every 32 inputs a vector of eight.
using LaneRun = float[ScreenTiles::kRunInputs / 4];

// rest = x − s a; returns s, x·a over the run by the tensor cores, with the axis in every row of A.
// `of_tokens` gets that of the tokens whose sums the lane has.
template <class T, bool kAligned>
__device__ __forceinline__ float leave_axis(LaneRun& rest, float (&of_tokens)[2],
                                            const std::uint16_t* row, const std::uint16_t* axis,
                                            int input, int depth) {
  constexpr int kVectors = ScreenTiles::kRunInputs / 4 / kVector;
  constexpr int kApart = 4 * kVector;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint4 x[kVectors], a[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    x[i] = load_row_vector<kAligned>(row, input + i * kApart, depth);
    a[i] = ptx::load_shared_row(axis + input + i * kApart);
  }
  float sums[2][4] = {};  // two, since a product waits for the one before
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const std::uint32_t first[4] = {a[i].x, a[i].x, a[i].y, a[i].y};
    const std::uint32_t second[4] = {a[i].z, a[i].z, a[i].w, a[i].w};
    T::mma(sums[0], first, x[i].x, x[i].y);
    T::mma(sums[1], second, x[i].z, x[i].w);
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {  // of one row, so that all lanes have the same bits
    of_tokens[e] = __shfl_sync(0xffffffffU, sums[0][e] + sums[1][e], lane % 4);
  }
  const float even = __shfl_sync(0xffffffffU, of_tokens[0], lane / 8);
  const float odd = __shfl_sync(0xffffffffU, of_tokens[1], lane / 8);
  const float s = lane / 4 % 2 == 0 ? even : odd;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    float values[kVector], along[kVector];
    widen<T>(x[i], values);
    widen<T>(a[i], along);
#pragma unroll
    for (int e = 0; e < kVector; ++e) rest[i * kVector + e] = fmaf(-s, along[e], values[e]);
  }
  return s;
}

// Sums over what a lane rounds, in units of the scale.
struct Rounded {
  int squares = 0;  // of levels
  float left_out = 0;
};

// Eight values in levels: the lane's B operand of a product.
__device__ __forceinline__ uint2 round_vector(const float* rest, float inverse, Rounded& sums) {
  std::uint32_t bits[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    constexpr float kRound = 0x1.8p23F;  // a sum with it has the nearest integer in its low bits
    const float shifted = fmaf(rest[i], inverse, kRound);
    const float left = fmaf(rest[i], inverse, kRound - shifted);
    sums.left_out = fmaf(left, left, sums.left_out);
    bits[i] = __float_as_uint(shifted);
  }
  const auto word = [&](const std::uint32_t* four) {
    const std::uint32_t levels = __byte_perm(__byte_perm(four[0], four[1], 0x0040),
                                             __byte_perm(four[2], four[3], 0x0040), 0x5410);
    sums.squares = __dp4a(static_cast<int>(levels), static_cast<int>(levels), sums.squares);
    return levels;
  };
  return make_uint2(word(bits), word(bits + 4));
}

// x · w in f32, by a warp.
template <class T, bool kAligned>
__device__ __forceinline__ float dot_of_warp(const std::uint16_t* x, const std::uint16_t* w,
                                             int depth, int rows) {
  constexpr int kAtOnce = kAligned ? 8 : 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
#pragma unroll 1
  for (int first = lane * kVector; first - lane * kVector < depth;
       first += kAtOnce * 32 * kVector) {
    uint4 weights[kAtOnce];
    uint4 inputs[kAtOnce];
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      weights[v] = load_row_vector<kAligned>(w, first + v * 32 * kVector, depth);
    }
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      inputs[v] = load_row_vector<kAligned>(x, first + v * 32 * kVector, depth);
    }
    // Never true, which keeps the loads together: never() in common/gather.cuh.
    if constexpr (kAligned) {
      if (__any_sync(0xffffffffU, rows < 0)) return sum;
    }
#pragma unroll
    for (int v = 0; v < kAtOnce; ++v) {
      const uint4& in = inputs[v];
      const float4 wide[2] = {
          make_float4(T::low(in.x), T::high(in.x), T::low(in.y), T::high(in.y)),
          make_float4(T::low(in.z), T::high(in.z), T::low(in.w), T::high(in.w))};
      add_products<T>(sum, wide, weights[v]);
    }
  }
  return sum_of_warp(sum);
}

// The block's shared memory, for `tokens` tokens, a multiple of eight.
class ScreenShared {
 public:
  using Tiles = ScreenTiles;
  explicit __device__ __forceinline__ ScreenShared(int tokens)
      : tokens_(tokens),
        sums_(reinterpret_cast<float*>(ptx::dynamic_shared() + Tiles::kWarps * Tiles::kRunBytes)) {}

  // The levels of a warp's run, of which a lane copies and reads its own.
  static __device__ __forceinline__ uint4* levels(int warp, int lane) {
    return reinterpret_cast<uint4*>(ptx::dynamic_shared() + warp * Tiles::kRunBytes) + lane;
  }
  // A warp's part of w·x in the neuron's scale: of neuron 8i + g at 4g + i.
  __device__ __forceinline__ float* sum(int warp, int token) const {
    return sums_ + (warp * tokens_ + token) * Tiles::kSumStride;
  }
  // A warp's part of S², ‖r̂‖², ‖r − r̂‖², and the largest size.
  __device__ __forceinline__ float4* figures(int warp, int token) const {
    return reinterpret_cast<float4*>(sums_ + Tiles::kWarps * tokens_ * Tiles::kSumStride) +
           warp * tokens_ + token;
  }
  __device__ __forceinline__ float* neuron_figures() const {
    return reinterpret_cast<float*>(figures(Tiles::kWarps, 0));
  }
  __device__ __forceinline__ int* count() const {
    return reinterpret_cast<int*>(neuron_figures() + Tiles::kFigures * Tiles::kNeurons);
  }
  __device__ __forceinline__ std::uint16_t* staged() const {
    return reinterpret_cast<std::uint16_t*>(count() + 4);
  }
  // Token · 32 + neuron of each candidate, in any order: each has a place of its own for its
  // result.
  __device__ __forceinline__ std::uint16_t* candidates() const {
    return staged() + tokens_ * Tiles::kStagedStride;
  }

 private:
  int tokens_;
  float* sums_;
};

// Lists a token's candidates: by a warp, a lane for each neuron.
__device__ __forceinline__ void list_candidates(const ScreenShared& shared, int token,
                                                const GemmReluTwellArgs& args) {
  using Tiles = ScreenTiles;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = min(Tiles::kWarps, args.screen.runs);  // that had any
  float product = 0;
  float along2 = 0;
  float squares = 0;
  float left_out = 0;
  float largest = 0;
#pragma unroll 1
  for (int w = 0; w < warps; ++w) {
    product += shared.sum(w, token)[lane % 8 * 4 + lane / 8];
    const float4 part = *shared.figures(w, token);
    along2 += part.x;
    squares += part.y;
    left_out += part.z;
    largest = fmaxf(largest, part.w);
  }
  constexpr float kLeast = 0x1p-20F;
  constexpr float kMost = 0x1p40F;
  const float left = 1.01F * sqrtf(left_out);
  const float norm = fmaf(1.01F, sqrtf(squares), left);
  const float slack =
      (0x1p-15F + 0x1p-22F * static_cast<float>(args.screen.runs)) * (norm + sqrtf(along2));
  float error = left + slack;
  // A bound that is NaN rules nothing out.
  if (largest != 0 && !(largest >= kLeast && largest <= kMost))
    error = __uint_as_float(0x7fc00000U);
  const float* figures = shared.neuron_figures() + lane;
  float bound = product * figures[0];
  bound = fmaf(figures[Tiles::kNeurons], error, bound);
  bound = fmaf(figures[2 * Tiles::kNeurons], norm + slack, bound);
  const bool exists = static_cast<int>(blockIdx.x) * Tiles::kNeurons + lane < args.cols;
  const bool candidate = exists && !(bound <= args.activation.kept_above);
  const std::uint32_t found = __ballot_sync(0xffffffffU, candidate);
  if (found == 0) return;
  int first = 0;
  if (lane == 0) first = atomicAdd(shared.count(), __popc(found));
  first = __shfl_sync(0xffffffffU, first, 0);
  if (candidate) {
    shared.candidates()[first + __popc(found & ((1U << lane) - 1))] =
        static_cast<std::uint16_t>(token * Tiles::kNeurons + lane);
  }
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(ScreenTiles::kThreads, 2)
    screen_relu_twell_sm80(const __grid_constant__ GemmReluTwellArgs args) {
  using Tiles = ScreenTiles;
  constexpr int kRows = Tiles::kNeurons / 8;  // loads of a lane per step
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int block = static_cast<int>(blockIdx.x);
  const int groups = (args.rows + 7) / 8;
  const ScreenShared shared(groups * 8);
  clear_words<Tiles::kThreads>(args.cleared, args.cleared_words);
  ptx::launch_dependents();

  for (int i = static_cast<int>(threadIdx.x); i < groups * 8 * Tiles::kStagedStride / 2;
       i += Tiles::kThreads) {
    reinterpret_cast<std::uint32_t*>(shared.staged())[i] = 0;
  }
  if (threadIdx.x == 0) *shared.count() = 0;
  constexpr int kFigures = Tiles::kFigures * Tiles::kNeurons;
  for (int i = static_cast<int>(threadIdx.x); i < kFigures; i += Tiles::kThreads) {
    shared.neuron_figures()[i] = args.screen.figures[block * kFigures + i];
  }

  const std::int8_t* levels =
      args.screen.levels +
      static_cast<std::int64_t>(block) * args.screen.steps * Tiles::kStepBytes + lane * 16;
  const float* along = args.screen.along +
                       static_cast<std::int64_t>(block) * args.screen.runs * Tiles::kNeurons +
                       lane / 4 * kRows;
  uint4* const own = ScreenShared::levels(warp, lane);
  for (int run = warp; run < args.screen.runs; run += Tiles::kWarps) {
#pragma unroll
    for (int i = 0; i < Tiles::kRunSteps * kRows; ++i) {
      const int step = run * Tiles::kRunSteps + i / kRows;
      const bool exists = step < args.screen.steps;
      const std::int64_t at = std::int64_t{exists ? step : 0} * Tiles::kStepBytes + i % kRows * 512;
      ptx::cp_async_16(ptx::shared_address(own + i * 32), levels + at, exists ? 16U : 0U);
    }
    ptx::cp_async_commit();
    const float4 run_along = ptx::load_shared_row_f4(along + run * Tiles::kNeurons);
    const float neuron_along[kRows] = {run_along.x, run_along.y, run_along.z, run_along.w};
#pragma unroll 1
    for (int j = 0; j < groups; ++j) {
      const int token = j * 8 + lane / 4;
      const int input = run * Tiles::kRunInputs + lane % 4 * kVector;
      const std::uint16_t* row = args.x.data + min(token, args.rows - 1) * args.x.stride;
      LaneRun rest;
      float token_along[2];  // of the tokens whose sums the lane has
      const float s_along =
          leave_axis<T, kAligned>(rest, token_along, row, args.screen.axis, input, args.depth);
      float largest = 0;
#pragma unroll
      for (const float r : rest) largest = fmaxf(largest, fabsf(r));
      largest = largest_of_four(largest);
      const float scale = largest * (1.0F / 127);
      constexpr float kLeastScale = 0x1p-100F;  // whose inverse is finite
      const float inverse = scale < kLeastScale ? 0.0F : 1 / scale;
      Rounded rounded;
      int c[kRows / 2][4] = {};
      ptx::cp_async_wait<0>();
#pragma unroll
      for (int step = 0; step < Tiles::kRunSteps; ++step) {
        uint4 w[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) w[i] = own[(step * kRows + i) * 32];
        const float* values = rest + step * 2 * kVector;
        const uint2 first = round_vector(values, inverse, rounded);
        const uint2 second = round_vector(values + kVector, inverse, rounded);
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
          const uint4 &a = w[2 * i], &b = w[2 * i + 1];
          ptx::mma_s8(c[i], {a.x, a.y, a.z, a.w}, first.x, first.y);
          ptx::mma_s8(c[i], {b.x, b.y, b.z, b.w}, second.x, second.y);
        }
      }
      const float squares = static_cast<float>(sum_of_four(rounded.squares));
      const float left_out = sum_of_four(rounded.left_out);
      if (lane % 4 == 0) {
        const float unit = scale * scale;
        float4 sum = make_float4(s_along * s_along, unit * squares, unit * left_out,
                                 fmaxf(largest, fabsf(s_along)));
        float4& all = *shared.figures(warp, token);
        if (run != warp) {
          sum = make_float4(all.x + sum.x, all.y + sum.y, all.z + sum.z, fmaxf(all.w, sum.w));
        }
        all = sum;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float token_scale = __shfl_sync(0xffffffffU, scale, (lane % 4 * 2 + e) * 4);
        const auto part = [&](int i) {
          const int product = c[i / 2][i % 2 * 2 + e];
          return fmaf(token_along[e], neuron_along[i], token_scale * static_cast<float>(product));
        };
        float4 sum = make_float4(part(0), part(1), part(2), part(3));
        float4& all =
            reinterpret_cast<float4*>(shared.sum(warp, j * 8 + lane % 4 * 2 + e))[lane / 4];
        if (run != warp) {
          sum = make_float4(all.x + sum.x, all.y + sum.y, all.z + sum.z, all.w + sum.w);
        }
        all = sum;
      }
    }
  }
  __syncthreads();
  for (int token = warp; token < args.rows; token += Tiles::kWarps) {
    list_candidates(shared, token, args);
  }
  __syncthreads();
  const int count = *shared.count();
  if (args.candidates != nullptr && threadIdx.x == 0) {
    atomicAdd(args.candidates, static_cast<unsigned long long>(count));
  }
#pragma unroll 1
  for (int i = warp; i < count; i += Tiles::kWarps) {
    const int candidate = shared.candidates()[i];
    const int token = candidate / Tiles::kNeurons;
    const int neuron = candidate % Tiles::kNeurons;
    const std::uint16_t* weight =
        args.weight.data + (block * Tiles::kNeurons + neuron) * args.weight.stride;
    const float sum = dot_of_warp<T, kAligned>(args.x.data + token * args.x.stride, weight,
                                               args.depth, args.rows);
    if (lane == 0) {
      shared.staged()[token * Tiles::kStagedStride + neuron] =
          static_cast<std::uint16_t>(T::round2(activate(sum, true, args.activation), 0.0F));
    }
  }
  __syncthreads();
  pack_rows<Tiles::kNeurons, Tiles::kStagedStride, Tiles::kThreads>(
      shared.staged(), args.rows, 0, block * Tiles::kNeurons, args.out);
}

}  // namespace twell::cuda
