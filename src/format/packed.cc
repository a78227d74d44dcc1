#include "twell/packed.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "format/prepared.h"

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

PreparedMemory::PreparedMemory(std::size_t bytes) {
  const std::size_t whole = std::max(bytes, std::size_t{1}) + kAlignment - 1;
  owned_ = {std::aligned_alloc(kAlignment, whole / kAlignment * kAlignment), std::free};
  data_ = owned_.get();
  if (data_ == nullptr) {
    throw Error(ErrorKind::out_of_memory, "twell::PreparedMemory",
                concat("cannot allocate ", bytes, " bytes for a weight"));
  }
}

PreparedMemory PreparedMemory::borrow(const void* data, const char* operation) {
  require_prepared(data, operation);
  PreparedMemory out;
  out.data_ = data;
  return out;
}

void pack_weight(ConstMatrixView w, void* packed) {
  require_weight(w, "pack_weight");
  require_prepared(packed, "pack_weight");
  if (w.dtype == DType::bf16) {
    pack_typed<bf16, 2>(w, static_cast<bf16*>(packed));
  } else {
    pack_typed<float, 1>(w, static_cast<float*>(packed));
  }
}

PackedWeight::PackedWeight(ConstMatrixView w) : PackedWeight({}, w.dtype, w.rows, w.cols) {
  require_weight(w, "PackedWeight");
  memory_ = PreparedMemory(packed_bytes(w.dtype, w.rows, w.cols));
  pack_weight(w, memory_.mutable_data());
}

PackedWeight::PackedWeight(PreparedMemory memory, DType dtype, std::int64_t rows, std::int64_t cols)
    : memory_(std::move(memory)), dtype_(dtype), rows_(rows), cols_(cols) {}

PackedWeight PackedWeight::borrow(const void* packed, DType dtype, std::int64_t rows,
                                  std::int64_t cols) {
  require_dtype("PackedWeight", "dtype", dtype);
  return {PreparedMemory::borrow(packed, "PackedWeight"), dtype, rows, cols};
}

void PackedWeight::unpack(MatrixView w) const {
  require(dtype_ == w.dtype && rows_ == w.rows && cols_ == w.cols, "PackedWeight::unpack", "w",
          "expected ", name_of(dtype_), " [", rows_, ", ", cols_, "], got ", name_of(w.dtype), " [",
          w.rows, ", ", w.cols, "]");
  require_view("PackedWeight::unpack", "w", w);
  if (dtype_ == DType::bf16) {
    unpack_typed<bf16, 2>(static_cast<const bf16*>(data()), w);
  } else {
    unpack_typed<float, 1>(static_cast<const float*>(data()), w);
  }
}

}  // namespace twell
