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
// A block takes 32 neurons, its eight warps every eighth run each: at 2,048 inputs one. A warp has
// the 16 loads of 16 bytes of its run under way in every lane, the whole screen is under way on the
// GPU, before it looks at x. So rounding x, 1,500 instructions of a warp for eight tokens and a
// run, hides behind memory up to eight tokens, and is done by every block for itself: a kernel that
// did it once would take 1.2 µs to start and 2 µs for its own reads that wait for one another.
// Levels lie in memory as mma's A operand wants them, so that a load is 512 bytes on end; x becomes
// a B operand in the lane that rounds it.
//
// What rounding in f32 adds to the bound is σ (‖ŵ‖ + ‖w − ŵ‖) (‖r‖ + S), S² = Σ s_b². Integer sums
// are below 2²³, so exact in f32. r is rounded once, by 2⁻²⁴ of it, and so is r̂ beside the levels
// times the scale, by less than 2⁻²². Sums over runs round three times a run and 20 times more, by
// 2⁻²⁴ each of ‖ŵ‖ ‖r̂‖ + S ‖w‖ at most. σ = 2⁻¹⁵ + 2⁻²² runs is more than all of it. Norms of x are
// 1 % too large, more than their sums' rounding; those of W are rounded up where they are made.
// Squares of runs that are too small for f32 are below σ of the whole while a token's largest value
// is 2⁻²⁰ at least; other tokens, except zeros, are ruled out nowhere.
#pragma once

#include "kernels/cuda/common/gather.cuh"
#include "kernels/cuda/common/pack_epilogue.cuh"
#include "kernels/cuda/ptx/grid.cuh"

namespace twell::cuda {

__device__ __forceinline__ float sum_of_four(float v) {
  v += __shfl_xor_sync(0xffffffffU, v, 1);
  return v + __shfl_xor_sync(0xffffffffU, v, 2);
}
__device__ __forceinline__ float largest_of_four(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffU, v, 2));
}

// A token's run, as the lane that has every fourth of its vectors of eight sees it.
template <class T, bool kAligned>
struct TokenRun {
  using Tiles = ScreenTiles;
  static constexpr int kHalves = 2 * Tiles::kRunSteps;
  static constexpr int kAtOnce = kAligned ? 4 : 1;  // loads of x, and of the axis
  const std::uint16_t* row;
  const std::uint16_t* axis;  // from the lane's first input on
  int input;                  // the lane's first
  int depth;

  // f(x, a, their number) over the lane's eight inputs of half a step. x comes from L1 in each of
  // three passes, since W takes the registers.
  template <class F>
  __device__ __forceinline__ void for_each(int half, F f) const {
    constexpr int kHalf = Tiles::kStepInputs / 2;
    const uint4 x = load_row_vector<kAligned>(row, input + half * kHalf, depth);
    const uint4 a = ptx::load_shared_row(axis + half * kHalf);
    f(T::low(x.x), Bf16::low(a.x), 0);
    f(T::high(x.x), Bf16::high(a.x), 1);
    f(T::low(x.y), Bf16::low(a.y), 2);
    f(T::high(x.y), Bf16::high(a.y), 3);
    f(T::low(x.z), Bf16::low(a.z), 4);
    f(T::high(x.z), Bf16::high(a.z), 5);
    f(T::low(x.w), Bf16::low(a.w), 6);
    f(T::high(x.w), Bf16::high(a.w), 7);
  }

  __device__ __forceinline__ float along() const {
    float sum = 0;
#pragma unroll kAtOnce
    for (int h = 0; h < kHalves; ++h) {
      for_each(h, [&](float v, float a, int) { sum = fmaf(v, a, sum); });
    }
    return sum_of_four(sum);
  }
  __device__ __forceinline__ float largest_rest(float s) const {
    float most = 0;
#pragma unroll kAtOnce
    for (int h = 0; h < kHalves; ++h) {
      for_each(h, [&](float v, float a, int) { most = fmaxf(most, fabsf(fmaf(-s, a, v))); });
    }
    return largest_of_four(most);
  }
};

// Sums over what a lane rounds, in units of the scale.
struct Rounded {
  float squares = 0, left_out = 0;
};

// Half a step in levels: the lane's B operand of a product.
template <class T, bool kAligned>
__device__ __forceinline__ uint2 round_half_step(const TokenRun<T, kAligned>& x, int half, float s,
                                                 float inverse, Rounded& sums) {
  std::uint32_t bits[kVector];
  x.for_each(half, [&](float v, float a, int i) {
    constexpr float kRound = 0x1.8p23F;  // a sum with it has the nearest integer in its low bits
    const float t = fmaf(-s, a, v) * inverse;
    const float shifted = t + kRound;
    const float rest = t - (shifted - kRound);
    sums.squares = fmaf(t, t, sums.squares);
    sums.left_out = fmaf(rest, rest, sums.left_out);
    bits[i] = __float_as_uint(shifted);
  });
  const auto word = [](const std::uint32_t* four) {
    return __byte_perm(__byte_perm(four[0], four[1], 0x0040), __byte_perm(four[2], four[3], 0x0040),
                       0x5410);
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
      : tokens_(tokens), sums_(reinterpret_cast<float*>(ptx::dynamic_shared())) {}

  // A warp's part of w·x in the neuron's scale.
  __device__ __forceinline__ float* sum(int warp, int token) const {
    return sums_ + (warp * tokens_ + token) * Tiles::kSumStride;
  }
  // A warp's part of S², ‖r‖², ‖r − r̂‖², and the largest size.
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
    product += shared.sum(w, token)[lane];
    const float4 part = *shared.figures(w, token);
    along2 += part.x;
    squares += part.y;
    left_out += part.z;
    largest = fmaxf(largest, part.w);
  }
  constexpr float kLeast = 0x1p-20F;
  constexpr float kMost = 0x1p40F;
  const float norm = 1.01F * sqrtf(squares);
  const float slack =
      (0x1p-15F + 0x1p-22F * static_cast<float>(args.screen.runs)) * (norm + sqrtf(along2));
  float error = 1.01F * sqrtf(left_out) + slack;
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
  for (int run = warp; run < args.screen.runs; run += Tiles::kWarps) {
    uint4 w[Tiles::kRunSteps][kRows];
#pragma unroll
    for (int s = 0; s < Tiles::kRunSteps; ++s) {
      const int step = run * Tiles::kRunSteps + s;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        w[s][i] = step < args.screen.steps
                      ? ptx::load_stream(
                            levels + static_cast<std::int64_t>(step) * Tiles::kStepBytes + i * 512)
                      : make_uint4(0, 0, 0, 0);
      }
    }
    const float4 run_along = ptx::load_shared_row_f4(along + run * Tiles::kNeurons);
    // Never true, which keeps the loads together: never() in common/gather.cuh.
    if (__any_sync(0xffffffffU, args.rows < 0)) return;
#pragma unroll 1
    for (int j = 0; j < groups; ++j) {
      const int token = j * 8 + lane / 4;
      const int input = run * Tiles::kRunInputs + lane % 4 * kVector;
      const std::uint16_t* row = args.x.data + min(token, args.rows - 1) * args.x.stride;
      const TokenRun<T, kAligned> x{row, args.screen.axis + input, input, args.depth};
      const float s_along = x.along();
      const float largest = x.largest_rest(s_along);
      const float scale = largest * (1.0F / 127);
      constexpr float kLeastScale = 0x1p-100F;  // whose inverse is finite
      const float inverse = scale < kLeastScale ? 0.0F : 1 / scale;
      Rounded rounded;
      int c[kRows / 2][4] = {};
#pragma unroll
      for (int h = 0; h < 2 * Tiles::kRunSteps; ++h) {
        const uint2 b = round_half_step(x, h, s_along, inverse, rounded);
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) {
          const uint4& upper = w[h / 2][2 * i];
          const uint4& lower = w[h / 2][2 * i + 1];
          const std::uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y};
          const std::uint32_t second[4] = {upper.z, lower.z, upper.w, lower.w};
          ptx::mma_s8(c[i], h % 2 == 0 ? first : second, b.x, b.y);
        }
      }
      rounded.squares = sum_of_four(rounded.squares);
      rounded.left_out = sum_of_four(rounded.left_out);
      if (lane % 4 == 0) {
        float4& sum = *shared.figures(warp, token);
        const float4 before = run == warp ? make_float4(0, 0, 0, 0) : sum;
        const float unit = scale * scale;
        sum = make_float4(fmaf(s_along, s_along, before.x), fmaf(unit, rounded.squares, before.y),
                          fmaf(unit, rounded.left_out, before.z),
                          fmaxf(before.w, fmaxf(largest, fabsf(s_along))));
      }
      // Of the tokens whose sums the lane has.
      float token_along[2];
      float token_scale[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int source = (lane % 4 * 2 + e) * 4;
        token_along[e] = __shfl_sync(0xffffffffU, s_along, source);
        token_scale[e] = __shfl_sync(0xffffffffU, scale, source);
      }
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float neuron_along =
              i == 0 ? (e < 2 ? run_along.x : run_along.y) : (e < 2 ? run_along.z : run_along.w);
          float* sum =
              shared.sum(warp, j * 8 + lane % 4 * 2 + e % 2) + i * 16 + lane / 4 + e / 2 * 8;
          const float before = run == warp ? 0.0F : *sum;
          *sum = before + fmaf(token_along[e % 2], neuron_along,
                               token_scale[e % 2] * static_cast<float>(c[i][e]));
        }
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
