#include "torch_ops/twell_tensors.h"

#include <cstring>

#include "twell/status.h"

namespace twell::torch_ops {
namespace {

ScalarType slot_type(DType dtype) {
  return dtype == DType::f32 ? ScalarType::Long : ScalarType::Int;
}

void require(const Argument& argument, ScalarType type, std::int64_t dims) {
  const Tensor& tensor = argument.tensor;
  require_device(argument);
  if (tensor.scalar_type() != type || tensor.dim() != dims || !tensor.is_contiguous()) {
    fail(argument.operation, argument.name,
         "expected a contiguous tensor of " + std::to_string(dims) + " dimensions and dtype " +
             torch::headeronly::toString(type) + ", got shape " + shape_of(tensor) + " of " +
             torch::headeronly::toString(tensor.scalar_type()));
  }
}

// TwellLayout::validate has the exact range; this keeps the conversion defined.
std::int32_t narrow(const char* operation, const char* argument, std::int64_t value) {
  if (value < 1 || value > kWidestTile) {
    fail(operation, argument,
         "expected 1 to " + std::to_string(kWidestTile) + ", got " + std::to_string(value));
  }
  return static_cast<std::int32_t>(value);
}

std::int64_t load_word(const std::byte* word, std::size_t bytes) {
  std::int32_t narrow = 0;
  std::int64_t wide = 0;
  if (bytes == sizeof(narrow)) {
    std::memcpy(&narrow, word, sizeof(narrow));
    return narrow;
  }
  std::memcpy(&wide, word, sizeof(wide));
  return wide;
}

void store_word(std::byte* word, std::size_t bytes, std::int64_t value) {
  const auto narrow = static_cast<std::int32_t>(value);
  std::memcpy(word, bytes == sizeof(narrow) ? static_cast<const void*>(&narrow) : &value, bytes);
}

}  // namespace

TwellLayout layout_of(const char* operation, const ConstMatrixView& like, std::int64_t cols,
                      std::int64_t tile, std::int64_t capacity) {
  const TwellLayout layout = {like.rows, cols, narrow(operation, "tile", tile),
                              narrow(operation, "capacity", capacity), like.dtype};
  layout.validate();
  return layout;
}

TwellLayout layout_of(const char* operation, const TwellTensors& tensors, std::int64_t cols,
                      DType dtype, const Tensor* gpu) {
  const auto& [counts, slots, overflow] = tensors;
  require({operation, "counts", counts, gpu}, ScalarType::Int, 2);
  require({operation, "slots", slots, gpu}, slot_type(dtype), 3);
  require({operation, "overflow", overflow, gpu}, slot_type(dtype), 2);
  const TwellLayout layout = {counts.size(0), cols, narrow(operation, "overflow", overflow.size(1)),
                              narrow(operation, "slots", slots.size(2)), dtype};
  layout.validate();
  if (counts.size(1) != layout.tiles()) {
    fail(operation, "counts",
         "expected " + std::to_string(layout.tiles()) + " tiles for " + std::to_string(cols) +
             " columns in tiles of " + std::to_string(layout.tile) + ", got shape " +
             shape_of(counts));
  }
  if (slots.size(0) != layout.rows || slots.size(1) != layout.tiles()) {
    fail(operation, "slots",
         "expected the rows and tiles of counts, " + shape_of(counts) + ", got shape " +
             shape_of(slots));
  }
  return layout;
}

TwellTensors to_tensors(const char* operation, const TwellMatrix& matrix, const Tensor& like) {
  const TwellLayout& layout = matrix.layout();
  const std::size_t bytes = slot_bytes(layout.dtype);
  const std::int64_t tiles = layout.tiles();
  const ScalarType type = slot_type(layout.dtype);
  TwellTensors out{
      new_empty({operation, "counts", like}, {layout.rows, tiles}, ScalarType::Int),
      new_zeros({operation, "slots", like}, {layout.rows, tiles, layout.capacity}, type),
      new_zeros({operation, "overflow", like}, {matrix.overflow_tiles(), layout.tile}, type)};
  auto* counts = static_cast<std::int32_t*>(std::get<0>(out).mutable_data_ptr());
  auto* slots = static_cast<std::byte*>(std::get<1>(out).mutable_data_ptr());
  auto* overflow = static_cast<std::byte*>(std::get<2>(out).mutable_data_ptr());
  std::int64_t records = 0;
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const std::int32_t count = matrix.count(row, tile);
      *counts++ = count;
      const auto used = static_cast<std::size_t>(count) * bytes;
      if (count > layout.capacity) {
        store_word(slots, bytes, records++);
        std::memcpy(overflow, matrix.stored(row, tile), used);
        overflow += static_cast<std::size_t>(layout.tile) * bytes;
      } else if (count > 0) {
        std::memcpy(slots, matrix.stored(row, tile), used);
      }
      slots += static_cast<std::size_t>(layout.capacity) * bytes;
    }
  }
  return out;
}

TwellMatrix from_tensors(const char* operation, const TwellTensors& tensors, std::int64_t cols,
                         DType dtype) {
  const TwellLayout layout = layout_of(operation, tensors, cols, dtype);
  const std::size_t bytes = slot_bytes(dtype);
  const auto* counts = static_cast<const std::int32_t*>(std::get<0>(tensors).const_data_ptr());
  const auto* slots = static_cast<const std::byte*>(std::get<1>(tensors).const_data_ptr());
  const auto* overflow = static_cast<const std::byte*>(std::get<2>(tensors).const_data_ptr());
  const std::int64_t records = std::get<2>(tensors).size(0);
  TwellMatrix matrix(layout);
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    for (std::int64_t tile = 0; tile < layout.tiles(); ++tile) {
      const std::int32_t count = *counts++;
      const std::byte* words = slots;
      slots += static_cast<std::size_t>(layout.capacity) * bytes;
      const std::string where = " at [" + std::to_string(row) + ", " + std::to_string(tile) + "]";
      if (count < 0 || count > layout.tile) {
        fail(operation, "counts",
             "expected 0 to " + std::to_string(layout.tile) + where + ", got " +
                 std::to_string(count));
      }
      if (count > layout.capacity) {
        const std::int64_t record = load_word(words, bytes);
        if (record < 0 || record >= records) {
          fail(operation, "slots",
               "expected the number of one of " + std::to_string(records) + " overflow records" +
                   where + ", got " + std::to_string(record));
        }
        words = overflow + static_cast<std::size_t>(record * layout.tile) * bytes;
      }
      matrix.append(row, tile, words, count);
    }
  }
  validate(matrix);
  return matrix;
}

}  // namespace twell::torch_ops
