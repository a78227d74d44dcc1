#include "twell/packed.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"

namespace twell {
namespace {

// Position of W[n, k] inside its panel; Depth steps of 16 neurons × Pair inputs.
template <int Pair>
std::int64_t offset_in_panel(std::int64_t neuron, std::int64_t k) {
  return (k / Pair) * kPanel * Pair + neuron * Pair + k % Pair;
}

template <class T, int Pair, class Copy>
void for_each_panel(std::int64_t rows, std::int64_t cols, T* packed, Copy copy) {
  const std::int64_t depth = packed_depth(dtype_of<std::remove_const_t<T>>::value, cols);
  const std::int64_t panels = packed_panels(rows);
#pragma omp parallel for schedule(static)
  for (std::int64_t p = 0; p < panels; ++p) {
    T* panel = packed + p * kPanel * depth;
    const std::int64_t neurons = std::min(kPanel, rows - p * kPanel);
    copy(p * kPanel, neurons, depth, panel);
  }
}

template <class T, int Pair>
void pack_typed(ConstMatrixView w, T* packed) {
  for_each_panel<T, Pair>(
      w.rows, w.cols, packed,
      [&](std::int64_t first, std::int64_t neurons, std::int64_t depth, T* panel) {
        if (neurons < kPanel || depth > w.cols) {
          std::fill_n(panel, kPanel * depth, T{});
        }
        for (std::int64_t n = 0; n < neurons; ++n) {
          const T* row = w.row<T>(first + n);
          for (std::int64_t k = 0; k < w.cols; ++k) {
            panel[offset_in_panel<Pair>(n, k)] = row[k];
          }
        }
      });
}

template <class T, int Pair>
void unpack_typed(const T* packed, MatrixView w) {
  for_each_panel<const T, Pair>(
      w.rows, w.cols, packed,
      [&](std::int64_t first, std::int64_t neurons, std::int64_t, const T* panel) {
        for (std::int64_t n = 0; n < neurons; ++n) {
          T* row = w.row<T>(first + n);
          for (std::int64_t k = 0; k < w.cols; ++k) row[k] = panel[offset_in_panel<Pair>(n, k)];
        }
      });
}

}  // namespace

void pack_weight(ConstMatrixView w, void* packed) {
  require_view("pack_weight", "w", w);
  if (w.dtype == DType::bf16) {
    pack_typed<bf16, 2>(w, static_cast<bf16*>(packed));
  } else {
    pack_typed<float, 1>(w, static_cast<float*>(packed));
  }
}

void unpack_weight(PackedView packed, MatrixView w) {
  require(packed.dtype == w.dtype && packed.rows == w.rows && packed.cols == w.cols,
          "unpack_weight", "w", "expected ", name_of(packed.dtype), " [", packed.rows, ", ",
          packed.cols, "], got ", name_of(w.dtype), " [", w.rows, ", ", w.cols, "]");
  require_view("unpack_weight", "w", w);
  if (w.dtype == DType::bf16) {
    unpack_typed<bf16, 2>(static_cast<const bf16*>(packed.data), w);
  } else {
    unpack_typed<float, 1>(static_cast<const float*>(packed.data), w);
  }
}

}  // namespace twell
