#include <cstdlib>
#include <numeric>

#include "core/check.h"
#include "format/twell_view.h"

namespace twell {

void TwellLayout::validate() const {
  const auto check = [](bool ok, const char* field, const char* expected, auto got) {
    require(ok, "TwellLayout", field, "expected ", expected, ", got ", got);
  };
  check(rows >= 0, "rows", "at least 0", rows);
  check(cols >= 0, "cols", "at least 0", cols);
  check(tile >= 16 && tile <= 65536 && tile % 16 == 0, "tile", "a multiple of 16 up to 65536",
        tile);
  check(capacity >= 1 && capacity <= tile, "capacity", "1 to tile", capacity);
  require_dtype("TwellLayout", "dtype", dtype);
}

struct TwellMatrix::Storage {
  explicit Storage(const TwellLayout& layout)
      : overflow(static_cast<std::size_t>(layout.tile) * slot_bytes(layout.dtype)) {
    const auto cells = static_cast<std::size_t>(layout.rows * layout.tiles());
    counts = std::make_unique<std::int32_t[]>(cells);
    slots = std::make_unique_for_overwrite<std::byte[]>(
        cells * static_cast<std::size_t>(layout.capacity) * slot_bytes(layout.dtype));
    view = {layout.tiles(), layout.tile, layout.capacity, slot_bytes(layout.dtype),
            counts.get(),   slots.get(), &overflow};
  }

  std::unique_ptr<std::int32_t[]> counts;
  std::unique_ptr<std::byte[]> slots;
  OverflowPool overflow;
  TwellView view;
};

TwellMatrix::TwellMatrix() = default;
TwellMatrix::~TwellMatrix() = default;
TwellMatrix::TwellMatrix(TwellMatrix&&) noexcept = default;
TwellMatrix& TwellMatrix::operator=(TwellMatrix&&) noexcept = default;

TwellMatrix::TwellMatrix(const TwellLayout& layout) : layout_(layout) {
  layout_.validate();
  storage_ = std::make_unique<Storage>(layout_);
}

const TwellView& TwellMatrix::view() const {
  require(storage_ != nullptr, "TwellMatrix", "view",
          "the matrix is empty: give it a layout first");
  return storage_->view;
}

std::int32_t TwellMatrix::count(std::int64_t row, std::int64_t tile) const {
  return view().count(row, tile);
}
const void* TwellMatrix::stored(std::int64_t row, std::int64_t tile) const {
  return view().stored(row, tile);
}

void TwellMatrix::append(std::int64_t row, std::int64_t tile, const void* slots, std::int32_t n) {
  require(row >= 0 && row < layout_.rows, "TwellMatrix::append", "row", "expected 0 to ",
          layout_.rows - 1, ", got ", row);
  require(tile >= 0 && tile < layout_.tiles(), "TwellMatrix::append", "tile", "expected 0 to ",
          layout_.tiles() - 1, ", got ", tile);
  require(n >= 0 && count(row, tile) + n <= layout_.tile, "TwellMatrix::append", "n", "a tile has ",
          layout_.tile, " columns and already holds ", count(row, tile), ", got ", n);
  view().append(row, tile, slots, n);
}

void TwellMatrix::clear() {
  if (storage_ == nullptr) return;
  std::fill_n(storage_->counts.get(), layout_.rows * layout_.tiles(), 0);
  storage_->overflow.clear();
}

std::int64_t TwellMatrix::row_nnz(std::int64_t row) const {
  const std::int32_t* counts = view().counts + row * layout_.tiles();
  return std::accumulate(counts, counts + layout_.tiles(), std::int64_t{0});
}

std::int64_t TwellMatrix::nnz() const {
  std::int64_t sum = 0;
  for (std::int64_t row = 0; row < layout_.rows; ++row) sum += row_nnz(row);
  return sum;
}

std::int64_t TwellMatrix::overflow_tiles() const {
  const std::int32_t* counts = view().counts;
  return std::count_if(counts, counts + layout_.rows * layout_.tiles(),
                       [&](std::int32_t count) { return count > layout_.capacity; });
}

}  // namespace twell
