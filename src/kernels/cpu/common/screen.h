// act(x Wᵀ) by way of the screen: tokens in 8 bits, the neurons that the bounds of the int8 GEMM do
// not rule out, and their pre-activations from the weight itself.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/common/pack.h"
#include "kernels/cpu/common/sampled_dots.h"

namespace twell {
namespace {

template <class Isa, class T>
struct ScreenKernels {
  using V = typename Isa::V;

  // f(k, x from k on, inputs) in steps of vectors, the last one of fewer inputs.
  template <class F>
  static void for_each_vector(const T* x, std::int64_t cols, F f) {
    std::int64_t k = 0;
    for (; k + Isa::kLanes <= cols; k += Isa::kLanes) f(k, Isa::load(x + k));
    if (k == cols) return;
    T last[Isa::kLanes] = {};
    std::copy_n(x + k, cols - k, last);
    f(k, Isa::load(last));
  }

  // x = s a + r; r to bytes, block by block, and the norms of it and of what the bytes leave out.
  static void screen_row(const void* x_row, const ScreenParts& screen, const ScreenedRows& to) {
    const T* x = static_cast<const T*>(x_row);
    const auto [x8, scales, row, x_block] = to;
    const std::int64_t block_bytes = x_block > 0 ? x_block : kCodeBlock;
    const std::int64_t piece_bytes = x_block > 0 ? TileOrder::kTile : TileOrder::kPiece;
    const float* axis = screen.axis();
    V dot = Isa::zero();
    for_each_vector(x, screen.cols,
                    [&](std::int64_t k, V v) { dot = Isa::fma(v, Isa::load(axis + k), dot); });
    const float s = Isa::sum(dot);
    const V minus_s = Isa::broadcast(-s);
    const auto rest = [&](std::int64_t k, V v) {
      return Isa::fma(Isa::load(axis + k), minus_s, v);
    };
    const std::int64_t blocks = code_blocks(screen.cols);
    const auto inputs = [&](std::int64_t b) {
      return std::min(kCodeBlock, screen.cols - b * kCodeBlock);
    };
    float size = std::abs(s);
    for (std::int64_t b = 0; b < blocks; ++b) {
      V most = Isa::zero();
      const std::int64_t first = b * kCodeBlock;
      for_each_vector(x + first, inputs(b),
                      [&](std::int64_t k, V v) { most = Isa::larger(most, rest(first + k, v)); });
      float sizes[Isa::kLanes];
      Isa::store(sizes, most);
      const float largest = *std::max_element(sizes, sizes + Isa::kLanes);
      scales[b] = largest / (Isa::kScreenZero - 1);
      size = std::max(size, largest);
    }
    const float unit = size / (Isa::kScreenZero - 1);
    row->inverse = size == 0.0F ? 1.0F : 1 / unit;
    float squares = 0, left_out = 0;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const float inverse = scales[b] == 0.0F ? 0.0F : 1 / scales[b];
      scales[b] *= row->inverse;
      const Norms norms = to_bytes(x + b * kCodeBlock, inputs(b), b * kCodeBlock, rest, inverse,
                                   x8 + b * block_bytes, piece_bytes);
      squares += norms.squares * scales[b] * scales[b];
      left_out += norms.left_out * scales[b] * scales[b];
    }
    // 1 % is above the rounding of these sums; 2⁻¹⁵ of the whole, and more with more blocks, above
    // that of r, of t, of the scales, of the GEMM and of the bound's own terms.
    const float slack = 0x1p-15F + 0x1p-23F * static_cast<float>(blocks);
    row->along = s * row->inverse;
    row->norm = 1.01F * std::sqrt(squares);
    row->error = 1.01F * std::sqrt(left_out) + slack * (row->norm + std::abs(row->along));
    // Not finite, or so small that a threshold in its unit could overflow: a bound that is NaN
    // rules nothing out.
    constexpr float kLeast = 1e-28F;
    if (size != 0.0F && !(size >= kLeast)) row->error = std::numeric_limits<float>::quiet_NaN();
  }

  struct Norms {
    float squares, left_out;
  };
  // One block of r, in its scale; pieces of 64 bytes go to places `piece_bytes` apart.
  template <class Rest>
  static Norms to_bytes(const T* x, std::int64_t inputs, std::int64_t first, Rest rest,
                        float inverse, std::uint8_t* x8, std::int64_t piece_bytes) {
    const auto at = [=](std::int64_t k) {
      return x8 + k / TileOrder::kPiece * piece_bytes + k % TileOrder::kPiece;
    };
    // 1.5 · 2²³: a sum with it has the nearest integer in its low bits.
    const V round = Isa::broadcast(0x1.8p23F);
    const V one = Isa::broadcast(1), minus_one = Isa::broadcast(-1);
    const V scale = Isa::broadcast(inverse);
    V squares = Isa::zero(), left_out = Isa::zero();
    for_each_vector(x, inputs, [&](std::int64_t k, V v) {
      const V t = Isa::mul(rest(first + k, v), scale);
      const V shifted = Isa::fma(t, one, round);
      const V error = Isa::fma(Isa::fma(round, minus_one, shifted), minus_one, t);
      squares = Isa::fma(t, t, squares);
      left_out = Isa::fma(error, error, left_out);
      Isa::store_low_bytes(at(k), shifted, Isa::kScreenZero);
    });
    const std::int64_t written = (inputs + Isa::kLanes - 1) / Isa::kLanes * Isa::kLanes;
    std::fill_n(at(written), code_depth(inputs) - written, std::uint8_t{});
    return {Isa::sum(squares), Isa::sum(left_out)};
  }

  // Bit i: neuron + i may fire. With a bias b it does where w·x > threshold − b, a difference whose
  // rounding is relative to itself, as that of a threshold is.
  static std::uint32_t candidates(const float* c, const ScreenParts& screen, std::int64_t neuron,
                                  const ScreenedRow& row, float threshold, const float* bias,
                                  std::int64_t biases) {
    float bounds[kPanel];
    for (int v = 0; v < kPanel; v += Isa::kLanes) {
      const std::int64_t n = neuron + v;
      V bound = Isa::mul(Isa::load(c + v), Isa::load(screen.scales() + n));
      bound = Isa::fma(Isa::load(screen.along() + n), Isa::broadcast(row.along), bound);
      bound = Isa::fma(Isa::load(screen.errors() + n), Isa::broadcast(row.norm), bound);
      bound = Isa::fma(Isa::load(screen.norms() + n), Isa::broadcast(row.error), bound);
      Isa::store(bounds + v, bound);
    }
    if (bias == nullptr) return Isa::kept16(bounds, threshold * row.inverse);
    for (std::int64_t i = 0; i < std::min(kPanel, biases); ++i) {
      bounds[i] -= (threshold - bias[i]) * row.inverse;
    }
    return Isa::kept16(bounds, 0.0F);
  }

  // Columns of the candidates, row by row, and how many each row has.
  struct Candidates {
    std::int32_t* list;
    std::int32_t* counts;  // [rows]
  };

  // Lists the candidates of all rows; returns their number. Four panels at a time: with 2 % left,
  // the loop over the bits of one panel would end where no branch predictor expects it.
  static std::int64_t find(const ScreenPackArgs& args, const Candidates& found) {
    constexpr std::int64_t kBits = 64;
    const float threshold = args.activation.kept_above();
    std::int64_t total = 0;
    for (std::int64_t r = 0; r < args.rows; ++r) {
      const float* row = args.c + r * kSumStride;
      const std::int64_t before = total;
      for (std::int64_t first = 0; first < args.width; first += kBits) {
        const std::int64_t columns = std::min(kBits, args.width - first);
        std::uint64_t mask = 0;
        for (std::int64_t j = 0; j < columns; j += kPanel) {
          const std::int64_t at = first + j;
          mask |= std::uint64_t{candidates(
                      row + at, args.screen, args.first + at, args.x8.rows[r], threshold,
                      args.bias != nullptr ? args.bias + at : nullptr, args.width - at)}
                  << j;
        }
        if (columns < kBits) mask &= (std::uint64_t{1} << columns) - 1;  // no padding neurons
        for (; mask != 0; mask &= mask - 1) {
          found.list[total++] = static_cast<std::int32_t>(first + __builtin_ctzll(mask));
        }
      }
      found.counts[r] = static_cast<std::int32_t>(total - before);
    }
    return total;
  }

  // Appends those candidates that fire. Rows are taken one after the other: the weights of a column
  // block that they share, up to 1 MB at D = 2048, stay in L2.
  static void evaluate(const ScreenPackArgs& args, const Candidates& found, std::int64_t total) {
    using Ahead = WholeRowsAhead<Isa>;
    const float threshold = args.activation.kept_above();
    const auto weight = [&](std::int64_t i) {
      return args.weight.template row<T>(args.first + found.list[std::min(i, total - 1)]);
    };
    BlockSlots<T> slots(args);
    std::int64_t i = 0;
    for (std::int64_t r = 0; r < args.rows; ++r) {
      const T* x = args.x.template row<T>(r);
      std::int32_t kept = 0;
      for (const std::int64_t end = i + found.counts[r]; i < end;) {
        const std::int64_t count = std::min(kDotRows, end - i);
        const T* w[kDotRows];
        const T* next[kDotRows];
        take_rows<Ahead>(i, weight, w, next);
        float z[kDotRows];
        dot_rows<Isa, Ahead>(count, x, w, next, args.weight.cols, z);
        for (std::int64_t n = 0; n < count; ++n) {
          if (args.bias != nullptr) z[n] += args.bias[found.list[i + n]];
          if (z[n] <= threshold) continue;
          kept = slots.add(kept, static_cast<std::uint32_t>(found.list[i + n]), z[n]);
        }
        i += count;
      }
      slots.append_to(r, kept);
    }
  }

  static std::int64_t pack(const ScreenPackArgs& args) {
    auto* list = static_cast<std::int32_t*>(args.scratch);
    const Candidates found = {list, list + args.rows * kColumnBlock};
    const std::int64_t total = find(args, found);
    evaluate(args, found, total);
    return total;
  }
};

}  // namespace
}  // namespace twell
