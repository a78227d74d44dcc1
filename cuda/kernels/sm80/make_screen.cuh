// The screen of a weight (DeviceScreen in kernels.h; screen_relu_twell.cuh says what it is for).
//
// A warp makes a neuron's part, a lane takes eight inputs of a run at a time. Sums are in f64, so
// that what has to be rounded up is all that is rounded; it is done once, at the speed of reading W
// twice or of f64.
#pragma once

#include "cuda/kernels/common/element.cuh"
#include "cuda/kernels/common/gather.cuh"
#include "cuda/kernels/kernels.h"

namespace twell::cuda {

constexpr int kMakeScreenNeurons = 8;  // of a block

__device__ __forceinline__ double sum_of_warp(double value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, distance);
  }
  return value;
}

// The lane's eight inputs of the axis, to length 1 over the run and rounded; zeros where that has
// no meaning.
template <class T>
__device__ __forceinline__ uint4 axis_of_run(const float* axis, int input, int depth) {
  float to[kVector];
  double squares = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    to[i] = axis != nullptr && input + i < depth ? axis[input + i] : 0.0F;
    squares += static_cast<double>(to[i]) * static_cast<double>(to[i]);
  }
  squares = sum_of_warp(squares);
  constexpr double kMost = 1e300;  // not NaN or infinite
  const bool defined = squares > 0 && squares < kMost;
  const double inverse = defined ? 1 / sqrt(squares) : 0.0;
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto value = [&](int of) {
      return defined ? static_cast<float>(static_cast<double>(to[of]) * inverse) : 0.0F;
    };
    words[i] = T::round2(value(2 * i), value(2 * i + 1));
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kMakeScreenNeurons * 32)
    make_screen_sm80(const __grid_constant__ MakeScreenArgs args) {
  using Tiles = ScreenTiles;
  constexpr float kLevels = 127;
  // Of rows whose bounds f32 holds with every token that is screened at all.
  constexpr float kLeastScale = 1e-20F;
  constexpr float kLargestScale = 1e10F;
  constexpr double kRoundedUp = 1 + 0x1p-20;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int neuron =
      static_cast<int>(blockIdx.x) * kMakeScreenNeurons + static_cast<int>(threadIdx.x) / 32;
  const bool exists = neuron < args.cols;  // else it pads the group
  const std::uint16_t* row = args.weight.data + (exists ? neuron : 0) * args.weight.stride;
  const auto load = [&](int input, float(&to)[kVector]) {
    const uint4 zeros = make_uint4(0, 0, 0, 0);
    widen<T>(exists ? load_row_vector<kAligned>(row, input, args.depth) : zeros, to);
  };

  float most = 0;
  float zero = 0;  // NaN from the first input on that is not finite
  for (int input = lane * kVector; input < args.depth; input += 32 * kVector) {
    float w[kVector];
    load(input, w);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      most = fmaxf(most, fabsf(w[i]));
      zero += 0 * w[i];
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, distance));
    zero += __shfl_xor_sync(0xffffffffU, zero, distance);
  }
  const float scale = most / kLevels;
  const bool screened = zero == 0 && scale >= kLeastScale && scale <= kLargestScale;
  const double inverse = screened ? 1 / static_cast<double>(scale) : 0.0;

  const int group = neuron / Tiles::kNeurons;
  const int i_of_group = neuron % Tiles::kNeurons / 8;
  const int g = neuron % 8;
  double squares = 0;   // of levels
  double left_out = 0;  // of w beside them
  for (int run = 0; run < args.screen.runs; ++run) {
    const int input = run * Tiles::kRunInputs + lane * kVector;
    const int step = input / Tiles::kStepInputs;
    const int half = lane % 8 / 4;
    const int t = lane % 4;
    float w[kVector];
    float axis[kVector];
    load(input, w);
    const uint4 rounded_axis = axis_of_run<T>(args.axis, input, args.depth);
    widen<T>(rounded_axis, axis);
    double along = 0;
    std::uint32_t bytes[2] = {};
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const double value = screened ? static_cast<double>(w[i]) : 0.0;
      const double level = rint(value * inverse);
      const double rest = value - level * static_cast<double>(scale);
      squares += level * level;
      left_out += rest * rest;
      along += value * inverse * static_cast<double>(axis[i]);
      bytes[i / 4] |= (static_cast<std::uint32_t>(static_cast<int>(level)) & 0xffU) << i % 4 * 8;
    }
    along = sum_of_warp(along);
    if (step < args.screen.steps) {
      std::int8_t* to =
          args.screen.levels +
          (static_cast<std::int64_t>(group) * args.screen.steps + step) * Tiles::kStepBytes +
          (i_of_group / 2 * 2 + half) * 512 + (g * 4 + t) * 16 + i_of_group % 2 * 4;
      *reinterpret_cast<std::uint32_t*>(to) = bytes[0];
      *reinterpret_cast<std::uint32_t*>(to + 8) = bytes[1];
    }
    if (lane == 0) {
      args.screen
          .along[(static_cast<std::int64_t>(group) * args.screen.runs + run) * Tiles::kNeurons +
                 g * 4 + i_of_group] = static_cast<float>(along);
    }
    if (neuron == 0) *reinterpret_cast<uint4*>(args.screen.axis + input) = rounded_axis;
  }
  squares = sum_of_warp(squares);
  left_out = sum_of_warp(left_out);
  if (lane != 0) return;
  float* figures =
      args.screen.figures + group * Tiles::kFigures * Tiles::kNeurons + neuron % Tiles::kNeurons;
  figures[0] = screened ? scale : 0.0F;
  figures[Tiles::kNeurons] =
      static_cast<float>(static_cast<double>(scale) * sqrt(squares) * kRoundedUp);
  // A bound that is NaN rules nothing out. A row of zeros has one of zero.
  const bool unbounded = !screened && !(zero == 0 && most == 0);
  figures[2 * Tiles::kNeurons] =
      unbounded ? __uint_as_float(0x7fc00000U) : static_cast<float>(sqrt(left_out) * kRoundedUp);
}

}  // namespace twell::cuda
