// Dense to TwELL and back, and the format's invariants: the specification the kernels are tested
// by.
#include <algorithm>
#include <vector>

#include "core/check.h"
#include "format/slots.h"

namespace twell {
namespace {

void check_dense(const TwellLayout& layout, ConstMatrixView dense, const char* operation) {
  require(layout.rows == dense.rows && layout.cols == dense.cols && layout.dtype == dense.dtype,
          operation, "dense", "expected ", name_of(layout.dtype), " [", layout.rows, ", ",
          layout.cols, "], got ", name_of(dense.dtype), " [", dense.rows, ", ", dense.cols, "]");
  require_view(operation, "dense", dense);
}

template <class T>
void pack_typed(ConstMatrixView dense, TwellMatrix& out) {
  using Slot = typename slot_of<T>::type;
  const TwellLayout& layout = out.layout();
  std::vector<Slot> slots(static_cast<std::size_t>(layout.tile));
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    const T* values = dense.row<T>(row);
    for (std::int64_t t = 0; t < layout.tiles(); ++t) {
      const std::int64_t first = t * layout.tile;
      const std::int64_t width = std::min<std::int64_t>(layout.tile, layout.cols - first);
      std::int32_t n = 0;
      for (std::int64_t c = 0; c < width; ++c) {
        if (!is_zero(values[first + c])) {
          slots[static_cast<std::size_t>(n++)] =
              make_slot(static_cast<std::uint32_t>(c), values[first + c]);
        }
      }
      out.append(row, t, slots.data(), n);
    }
  }
}

template <class T>
void unpack_typed(const TwellMatrix& packed, MatrixView dense) {
  using Slot = typename slot_of<T>::type;
  const TwellLayout& layout = packed.layout();
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    T* values = dense.row<T>(row);
    std::fill_n(values, layout.cols, T{});
    for (std::int64_t t = 0; t < layout.tiles(); ++t) {
      const Slot* slots = packed.slots<Slot>(row, t);
      for (std::int32_t i = 0; i < packed.count(row, t); ++i) {
        values[t * layout.tile + slots[i].column] = static_cast<T>(value_of(slots[i]));
      }
    }
  }
}

template <class Slot>
void validate_typed(const TwellMatrix& packed) {
  const TwellLayout& layout = packed.layout();
  for (std::int64_t row = 0; row < layout.rows; ++row) {
    for (std::int64_t t = 0; t < layout.tiles(); ++t) {
      const std::int64_t width = std::min<std::int64_t>(layout.tile, layout.cols - t * layout.tile);
      const auto check = [&](bool ok, const char* rule, std::int64_t got) {
        require(ok, "validate", "packed", "row ", row, ", tile ", t, ": ", rule, ", got ", got);
      };
      const std::int32_t count = packed.count(row, t);
      check(count >= 0 && count <= width, "count must be 0 to the tile's width", count);
      const Slot* slots = packed.slots<Slot>(row, t);
      std::int64_t previous = -1;
      for (std::int32_t i = 0; i < count; ++i) {
        const std::int64_t column = slots[i].column;
        check(column > previous, "columns must ascend", column);
        check(column < width, "column must be below the tile's width", column);
        check(value_of(slots[i]) != 0.0F, "a stored value must not be zero, slot", i);
        previous = column;
      }
    }
  }
}

}  // namespace

TwellMatrix pack(ConstMatrixView dense, const TwellLayout& layout) {
  TwellMatrix out(layout);
  check_dense(layout, dense, "pack");
  if (layout.dtype == DType::bf16) {
    pack_typed<bf16>(dense, out);
  } else {
    pack_typed<float>(dense, out);
  }
  return out;
}

void unpack(const TwellMatrix& packed, MatrixView dense) {
  const TwellLayout& layout = packed.layout();
  check_dense(layout, dense, "unpack");
  if (layout.dtype == DType::bf16) {
    unpack_typed<bf16>(packed, dense);
  } else {
    unpack_typed<float>(packed, dense);
  }
}

void validate(const TwellMatrix& packed) {
  if (packed.layout().dtype == DType::bf16) {
    validate_typed<TwellSlot16>(packed);
  } else {
    validate_typed<TwellSlot32>(packed);
  }
}

}  // namespace twell
