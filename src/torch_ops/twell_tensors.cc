#include "torch_ops/twell_tensors.h"

#include <cstring>
#include <limits>

#include "twell/status.h"

namespace twell::torch_ops {
namespace {

ScalarType slot_type(DType dtype) {
  return dtype == DType::f32 ? ScalarType::Long : ScalarType::Int;
}

void require(const Argument& argument, ScalarType type, std::int64_t dims) {
  const Tensor& tensor = argument.tensor;
  if (!tensor.is_cpu() || tensor.scalar_type() != type || tensor.dim() != dims ||
      !tensor.is_contiguous()) {
    fail(argument.operation, argument.name,
         "expected a contiguous CPU tensor of " + std::to_string(dims) + " dimensions and dtype " +
             torch::headeronly::toString(type) + ", got shape " + shape_of(tensor) + " of " +
             torch::headeronly::toString(tensor.scalar_type()));
  }
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

TwellLayout layout_of(const char* operation, const TwellTensors& tensors, std::int64_t cols,
                      DType dtype) {
  require({operation, "counts", tensors.counts}, ScalarType::Int, 2);
  require({operation, "slots", tensors.slots}, slot_type(dtype), 3);
  require({operation, "overflow", tensors.overflow}, slot_type(dtype), 2);
  const std::int64_t capacity = tensors.slots.size(2);
  const std::int64_t tile = tensors.overflow.size(1);
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  if (capacity > kMax || tile > kMax) {
    fail(operation, "overflow",
         "expected tiles of at most 65536 columns, got " + std::to_string(tile));
  }
  TwellLayout layout;
  layout.rows = tensors.counts.size(0);
  layout.cols = cols;
  layout.tile = static_cast<std::int32_t>(tile);
  layout.capacity = static_cast<std::int32_t>(capacity);
  layout.dtype = dtype;
  layout.validate();
  if (tensors.counts.size(1) != layout.tiles()) {
    fail(operation, "counts",
         "expected " + std::to_string(layout.tiles()) + " tiles for " + std::to_string(cols) +
             " columns in tiles of " + std::to_string(tile) + ", got shape " +
             shape_of(tensors.counts));
  }
  if (tensors.slots.size(0) != layout.rows || tensors.slots.size(1) != layout.tiles()) {
    fail(operation, "slots",
         "expected the rows and tiles of counts, " + shape_of(tensors.counts) + ", got shape " +
             shape_of(tensors.slots));
  }
  return layout;
}

}  // namespace

TwellTensors to_tensors(const char* operation, const TwellMatrix& matrix, const Tensor& like) {
  const TwellLayout& layout = matrix.layout();
  const std::size_t bytes = slot_bytes(layout.dtype);
  const std::int64_t tiles = layout.tiles();
  const ScalarType type = slot_type(layout.dtype);
  TwellTensors out{
      new_empty({operation, "counts", like}, {layout.rows, tiles}, ScalarType::Int),
      new_zeros({operation, "slots", like}, {layout.rows, tiles, layout.capacity}, type),
      new_zeros({operation, "overflow", like}, {matrix.overflow_tiles(), layout.tile}, type)};
  auto* counts = static_cast<std::int32_t*>(out.counts.mutable_data_ptr());
  auto* slots = static_cast<std::byte*>(out.slots.mutable_data_ptr());
  auto* overflow = static_cast<std::byte*>(out.overflow.mutable_data_ptr());
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
  const auto* counts = static_cast<const std::int32_t*>(tensors.counts.const_data_ptr());
  const auto* slots = static_cast<const std::byte*>(tensors.slots.const_data_ptr());
  const auto* overflow = static_cast<const std::byte*>(tensors.overflow.const_data_ptr());
  const std::int64_t records = tensors.overflow.size(0);
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
