#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/check.h"
#include "twell/format.h"

namespace twell {

void TwellLayout::validate() const {
  const auto check = [](bool ok, const char* field, const char* expected, auto got) {
    require(ok, "TwellLayout", field, "expected ", expected, ", got ", got);
  };
  check(rows >= 0, "rows", "at least 0", rows);
  check(cols >= 0, "cols", "at least 0", cols);
  check(tile >= 16 && tile <= kWidestTile && tile % 16 == 0, "tile", "a multiple of 16 up to 65536",
        tile);
  check(capacity >= 1 && capacity <= tile, "capacity", "1 to tile", capacity);
}

TwellMatrix::TwellMatrix(const TwellLayout& layout) : layout_(layout) {
  layout_.validate();
  require_dtype("TwellMatrix", "dtype", layout.dtype);
  counts_.resize(static_cast<std::size_t>(layout.rows * layout.tiles()));
  slots_.resize(counts_.size() * bytes(layout.capacity));
}

const void* TwellMatrix::stored(std::int64_t row, std::int64_t tile) const {
  const std::byte* here = slots_.data() + cell(row, tile) * bytes(layout_.capacity);
  if (count(row, tile) <= layout_.capacity) return here;
  std::uint32_t record = 0;
  std::memcpy(&record, here, sizeof record);
  return overflow_[record].data();
}

void TwellMatrix::append(std::int64_t row, std::int64_t tile, const void* slots, std::int32_t n) {
  require(row >= 0 && row < layout_.rows, "TwellMatrix::append", "row", "expected 0 to ",
          layout_.rows - 1, ", got ", row);
  require(tile >= 0 && tile < layout_.tiles(), "TwellMatrix::append", "tile", "expected 0 to ",
          layout_.tiles() - 1, ", got ", tile);
  std::int32_t& have = counts_[cell(row, tile)];
  require(n >= 0 && have + n <= layout_.tile, "TwellMatrix::append", "n", "a tile has ",
          layout_.tile, " columns and already holds ", have, ", got ", n);
  auto* target = static_cast<std::byte*>(const_cast<void*>(stored(row, tile)));
  if (have <= layout_.capacity && have + n > layout_.capacity) {
    const auto record = static_cast<std::uint32_t>(overflow_.size());
    std::vector<std::byte>& room = overflow_.emplace_back(bytes(layout_.tile));
    std::memcpy(room.data(), target, bytes(have));
    std::memcpy(target, &record, sizeof record);
    target = room.data();
  }
  std::memcpy(target + bytes(have), slots, bytes(n));
  have += n;
}

void TwellMatrix::clear() {
  std::fill(counts_.begin(), counts_.end(), 0);
  overflow_.clear();
}

std::int64_t TwellMatrix::row_nnz(std::int64_t row) const {
  const std::int32_t* counts = counts_.data() + cell(row, 0);
  return std::accumulate(counts, counts + layout_.tiles(), std::int64_t{0});
}

std::int64_t TwellMatrix::nnz() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

std::int64_t TwellMatrix::overflow_tiles() const {
  return std::count_if(counts_.begin(), counts_.end(),
                       [&](std::int32_t count) { return count > layout_.capacity; });
}

}  // namespace twell
