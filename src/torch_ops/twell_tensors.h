// A TwELL matrix as three tensors, for inspection and for stepwise use from Python.
//
//   counts    int32 [M, tiles]            true non-zeros of (row, tile)
//   slots     int32 or int64 [M, tiles, capacity]
//   overflow  the same dtype [K, tile]    one record for each tile with count > capacity
//
// One slot is one word: the column within the tile in its low half, the value's bits in its high
// half (int32 for 16-bit values, int64 for f32). Where count > capacity, slots[row, tile, 0] is the
// record's number; records are numbered in ascending (row, tile) order. Unused words are zero, so
// the tensors are a function of the matrix alone. The tile width is overflow's second size.
#pragma once

#include <cstdint>
#include <tuple>

#include "torch_ops/arguments.h"
#include "twell/format.h"

namespace twell::torch_ops {

using TwellTensors = std::tuple<Tensor, Tensor, Tensor>;  // counts, slots, overflow

// As asked for, checked.
TwellLayout layout_of(const char* operation, const ConstMatrixView& like, std::int64_t cols,
                      std::int64_t tile, std::int64_t capacity);
// Of a triple with `cols` columns; `gpu` as in Argument. Nothing in the tensors is read.
TwellLayout layout_of(const char* operation, const TwellTensors& tensors, std::int64_t cols,
                      DType dtype, const Tensor* gpu = nullptr);

// On the device of `like`.
TwellTensors to_tensors(const char* operation, const TwellMatrix& matrix, const Tensor& like);

// Throws on tensors that no matrix of `cols` columns and values of `dtype` has.
TwellMatrix from_tensors(const char* operation, const TwellTensors& tensors, std::int64_t cols,
                         DType dtype);

}  // namespace twell::torch_ops
