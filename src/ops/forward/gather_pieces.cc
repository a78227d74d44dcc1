#include "ops/forward/gather_pieces.h"

#include <algorithm>
#include <utility>

#include "ops/hidden.h"

namespace twell {
namespace {

// All neurons of one row fit; of several rows, what is little enough to be read again from L2 for
// each piece: 256 KB of neurons and dot products.
std::int64_t room_of(const SparseRows& work) {
  return std::max<std::int64_t>(work.packed.tiles * work.packed.tile, 32768);
}

// f(first column, columns) for each piece.
template <class F>
void for_each_piece(std::int64_t cols, std::int64_t width, F f) {
  for (std::int64_t first = 0; first < cols; first += width) {
    f(first, std::min(width, cols - first));
  }
}

}  // namespace

std::size_t GatherPieces::bytes(const SparseRows& work) {
  return static_cast<std::size_t>(room_of(work)) * (sizeof(std::int32_t) + 3 * sizeof(float));
}

GatherPieces::GatherPieces(const SparseRows& work, void* memory, float* own)
    : work_(work),
      room_(room_of(work)),
      neurons_(static_cast<std::int32_t*>(memory)),
      values_(reinterpret_cast<float*>(neurons_ + room_)),
      dots_(values_ + room_),
      partial_(dots_ + room_),
      own_(own) {}

void GatherPieces::run(std::int64_t begin, std::int64_t end) {
  while (begin < end) {
    const std::int64_t count = fill(begin, std::min(end, begin + kRows));
    if (work_.weights.up) multiply_by_up(begin, count);
    if (scales_hidden(work_.form)) scale_hidden(begin, count);
    add_down(begin, count);
    begin += count;
  }
}

// Lists rows from `begin` on while there is room; returns their number.
std::int64_t GatherPieces::fill(std::int64_t begin, std::int64_t end) {
  std::int64_t n = 0, row = begin;
  for (; row < end && n + work_.packed.row_count(row) <= room_; ++row) {
    n += work_.packed.list_row(row, neurons_ + n, values_ + n);
    offsets_[row - begin + 1] = n;
  }
  return row - begin;
}

void GatherPieces::multiply_by_up(std::int64_t first, std::int64_t count) {
  const std::int64_t all = offsets_[count];
  const auto element = static_cast<std::int64_t>(size_of(work_.x.dtype));
  std::fill_n(dots_, all, 0.0F);
  for_each_piece(work_.weights.up->cols, work_.columns,
                 [&](std::int64_t column, std::int64_t width) {
                   const Weight piece = work_.weights.up->piece(column, width);
                   for (std::int64_t r = 0; r < count; ++r) {
                     const std::int64_t begin = offsets_[r];
                     piece.dots(work_.x.row_bytes(first + r) + column * element, neurons_ + begin,
                                offsets_[r + 1] - begin, partial_ + begin);
                   }
                   for (std::int64_t i = 0; i < all; ++i) dots_[i] += partial_[i];
                 });
  // Rows move together where up's activation takes places out.
  std::int64_t end = 0;
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t begin = std::exchange(offsets_[r], end);
    const std::int64_t places = offsets_[r + 1] - begin;
    add_up_bias(work_.form, neurons_ + begin, places, dots_ + begin);
    const std::int64_t left =
        combine_places(work_.form, neurons_ + begin, values_ + begin, dots_ + begin, places);
    if (begin != end) {
      std::copy_n(neurons_ + begin, left, neurons_ + end);
      std::copy_n(values_ + begin, left, values_ + end);
    }
    end += left;
  }
  offsets_[count] = end;
}

void GatherPieces::scale_hidden(std::int64_t first, std::int64_t count) {
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t begin = offsets_[r];
    double squares =
        scale_places(work_.form, neurons_ + begin, values_ + begin, offsets_[r + 1] - begin);
    if (work_.squares != nullptr) squares += work_.squares[first + r];
    scale_[r] = norm_factor(work_.form, squares, work_.weights.down.rows);
  }
}

void GatherPieces::add_down(std::int64_t first, std::int64_t count) {
  const std::int64_t cols = work_.weights.down.cols;
  const auto element = static_cast<std::int64_t>(size_of(work_.y.dtype));
  const bool add = work_.sums != nullptr;
  for_each_piece(cols, work_.columns, [&](std::int64_t column, std::int64_t width) {
    const Weight piece = work_.weights.down.piece(column, width);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t row = first + r;
      const std::int64_t begin = offsets_[r];
      float* sum = add ? work_.sums + row * cols + column : own_;
      piece.combine({neurons_ + begin, values_ + begin, offsets_[r + 1] - begin}, add, sum);
      finish_row(work_.kernels, work_.form, work_.weights.down, scale_[r], column, width, sum,
                 work_.y.row_bytes(row) + column * element);
    }
  });
}

}  // namespace twell
