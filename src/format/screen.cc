#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/team.h"
#include "format/prepared.h"
#include "format/screen_parts.h"

namespace twell {
namespace {

constexpr float kLevels = 127;
// Of rows whose bounds f32 holds: beyond, products with a token's 127 could overflow, or what is
// left out vanish.
constexpr float kLeastScale = 1e-30F, kLargestScale = 1e10F;
constexpr std::int64_t kLanes = 16;

struct ScreenRow {
  float scale = 0, norm = 0, error = 0, along = 0;
};

struct BlockSums {
  double squares = 0, left_out = 0;
};
// Neuron i of one block. Written for the vectoriser: the inputs are a multiple of kLanes.
BlockSums fill_block(const float* w, std::int64_t inputs, float scale, std::int64_t i,
                     std::int8_t* block) {
  const float inverse = 1 / scale;
  float squares[kLanes] = {};
  float left_out[kLanes] = {};
  std::int32_t sums[kLanes] = {};
  for (std::int64_t k = 0; k < inputs; k += kLanes) {
    std::int8_t levels[kLanes];
    for (std::int64_t l = 0; l < kLanes; ++l) {
      // 1.5 · 2²³: a sum with it has the nearest integer in its low bits.
      const float t = w[k + l] * inverse;
      const float level = (t + 0x1.8p23F) - 0x1.8p23F;
      const float rest = t - level;
      squares[l] += level * level;
      left_out[l] += rest * rest;
      const auto whole = static_cast<std::int32_t>(level);
      sums[l] += whole;
      levels[l] = static_cast<std::int8_t>(whole);
    }
    for (std::int64_t four = 0; four < kLanes / 4; ++four) {
      std::memcpy(block + (kCodeHead + k + 4 * four) * kPanel + 4 * i, levels + 4 * four, 4);
    }
  }
  BlockSums total;
  std::int32_t sum = 0;
  for (std::int64_t l = 0; l < kLanes; ++l) {
    total.squares += static_cast<double>(squares[l]);
    total.left_out += static_cast<double>(left_out[l]);
    sum += sums[l];
  }
  sum = -sum;
  std::memcpy(block + 4 * i, &sum, sizeof sum);
  return total;
}

// Neuron i of a panel, which is zero so far. `wide` is w in f32, zeros up to code_depth(cols).
ScreenRow screen_row(const float* wide, std::int64_t cols, const float* axis, std::int64_t i,
                     std::int8_t* panel) {
  const std::int64_t depth = code_depth(cols);
  double along[kLanes] = {};
  float largest[kLanes] = {};
  float zeros[kLanes] = {};
  for (std::int64_t k = 0; k < depth; k += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      along[l] += static_cast<double>(wide[k + l]) * static_cast<double>(axis[k + l]);
      const float size = std::abs(wide[k + l]);
      largest[l] = size > largest[l] ? size : largest[l];
      zeros[l] += 0 * wide[k + l];  // NaN from the first input on that is not finite
    }
  }
  float most = 0;
  bool finite = true;
  ScreenRow row;
  double dot = 0;
  for (std::int64_t l = 0; l < kLanes; ++l) {
    most = std::max(most, largest[l]);
    finite = finite && zeros[l] == 0;
    dot += along[l];
  }
  row.scale = most / kLevels;
  if (!finite || row.scale < kLeastScale || row.scale > kLargestScale) {
    row.scale = 0;
    // A bound that is NaN rules nothing out.
    if (!finite || most > 0) row.error = std::numeric_limits<float>::quiet_NaN();
    return row;
  }
  row.along = static_cast<float>(dot);
  BlockSums total;
  for (std::int64_t first = 0; first < depth; first += kCodeBlock) {
    std::int8_t* block = panel + first / kCodeBlock * kPanel * (kCodeBlock + kCodeHead);
    const std::int64_t inputs = std::min(kCodeBlock, depth - first);
    const BlockSums part = fill_block(wide + first, inputs, row.scale, i, block);
    total.squares += part.squares;
    total.left_out += part.left_out;
  }
  // In levels, which neither vanish nor overflow when squared. Squares of 16 levels and their sums
  // are exact; what is left out errs by less than a thousandth, but for what w / scale rounds away.
  row.norm = row.scale * static_cast<float>(std::sqrt(total.squares)) * (1 + 0x1p-20F);
  row.error =
      row.scale * 1.001F * static_cast<float>(std::sqrt(total.left_out)) + 0x1p-20F * row.norm;
  return row;
}

// To length 1; zeros where that has no meaning.
void normalise(const float* axis, std::int64_t cols, float* out) {
  std::fill_n(out, code_depth(cols), 0.0F);
  if (axis == nullptr) return;
  double squares = 0;
  for (std::int64_t k = 0; k < cols; ++k) {
    squares += static_cast<double>(axis[k]) * static_cast<double>(axis[k]);
  }
  if (!std::isfinite(squares) || squares == 0) return;
  for (std::int64_t k = 0; k < cols; ++k) {
    out[k] = static_cast<float>(static_cast<double>(axis[k]) / std::sqrt(squares));
  }
}

template <class T>
void make_typed(ConstMatrixView w, const float* axis, void* screen, const Context* context) {
  const ScreenParts view{{screen, w.rows, w.cols}};
  normalise(axis, w.cols, const_cast<float*>(view.axis()));
  const std::int64_t depth = code_depth(w.cols);
  std::vector<float> wide_rows(static_cast<std::size_t>(depth * threads_of(context)));
  parallel(context, [&](Team& team) {
    float* wide = wide_rows.data() + depth * team.thread();
    team.for_static_nowait(packed_panels(w.rows), [&](std::int64_t p) {
      auto* panel = const_cast<std::int8_t*>(view.panel(p));
      std::fill_n(panel, code_panel_bytes(w.cols), std::int8_t{});
      for (std::int64_t i = 0; i < kPanel; ++i) {
        const std::int64_t n = p * kPanel + i;
        ScreenRow row;
        if (n < w.rows) {
          const T* from = w.row<T>(n);
          for (std::int64_t k = 0; k < w.cols; ++k) wide[k] = static_cast<float>(from[k]);
          row = screen_row(wide, w.cols, view.axis(), i, panel);
        }
        const_cast<float*>(view.scales())[n] = row.scale;
        const_cast<float*>(view.norms())[n] = row.norm;
        const_cast<float*>(view.errors())[n] = row.error;
        const_cast<float*>(view.along())[n] = row.along;
      }
    });
  });
}

}  // namespace

void make_screen(ConstMatrixView w, const float* axis, void* screen, const Context* context) {
  require_dtype("make_screen", "w", w.dtype);
  require_weight(w, "make_screen");
  require_prepared(screen, "make_screen");
  if (w.dtype == DType::bf16) {
    make_typed<bf16>(w, axis, screen, context);
  } else {
    make_typed<float>(w, axis, screen, context);
  }
}

Screen::Screen(ConstMatrixView w, const float* axis, const Context* context) {
  require_dtype("Screen", "w", w.dtype);
  require_weight(w, "Screen");
  memory_ = PreparedMemory(screen_bytes(w.rows, w.cols));
  make_screen(w, axis, memory_.mutable_data(), context);
  view_ = {memory_.data(), w.rows, w.cols};
}

}  // namespace twell
