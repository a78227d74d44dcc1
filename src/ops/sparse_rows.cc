#include "ops/sparse_rows.h"

#include <algorithm>

#include "ops/scratch.h"

namespace twell {
namespace {

// The part's share of one row: y32 (+)= Σ over its neurons.
void run_part(const SparseRows& work, std::int64_t row, int part, void* list, bool add,
              float* y32) {
  auto* neurons = static_cast<std::int32_t*>(list);
  auto* values = reinterpret_cast<float*>(neurons + work.packed.tiles * work.packed.tile);
  std::int64_t n = 0;
  for (std::int64_t t = 0; t < work.packed.tiles; ++t) {
    work.packed.for_each_slot(row, t, [&](std::int32_t neuron, float value) {
      neurons[n] = neuron;
      values[n++] = value;
    });
  }
  const std::int64_t begin = n * part / work.parts;
  const ActiveNeurons active = {neurons + begin, values + begin,
                                n * (part + 1) / work.parts - begin};
  if (work.up) work.kernels.sampled_dots(work.x.row_bytes(row), *work.up, active);
  work.kernels.weighted_rows(work.down, active, add, y32);
}

// Columns [first, first + width) of a weight.
ConstMatrixView columns_of(const ConstMatrixView& w, std::int64_t first, std::int64_t width) {
  const auto* data = static_cast<const std::byte*>(w.data);
  return {data + static_cast<std::size_t>(first) * size_of(w.dtype), w.dtype, w.rows, width,
          w.row_stride};
}

// Neurons of a few rows together, in one list.
constexpr std::int64_t kPieceRows = 256;
struct PieceLists {
  std::int32_t* neurons;
  float* values;
  float* dots;
  std::int64_t room;
  std::int64_t offsets[kPieceRows + 1] = {};

  // Those of one row at least fit; 384 KB otherwise, which is read from end to end for each piece.
  static std::int64_t room_of(const SparseRows& work) {
    return std::max<std::int64_t>(work.packed.tiles * work.packed.tile, 32768);
  }
  explicit PieceLists(const SparseRows& work, void* list)
      : neurons(static_cast<std::int32_t*>(list)), room(room_of(work)) {
    values = reinterpret_cast<float*>(neurons + room);
    dots = values + room;
  }
  ActiveNeurons of(std::int64_t row, float* coefficients) const {
    return {neurons + offsets[row], coefficients + offsets[row], offsets[row + 1] - offsets[row]};
  }

  // Takes rows from `first` on, up to `end`, while there is room; returns their number.
  std::int64_t fill(const SparseRows& work, std::int64_t first, std::int64_t end) {
    std::int64_t n = 0, row = first;
    for (; row < std::min(end, first + kPieceRows); ++row) {
      if (n + work.packed.row_count(row) > room) break;
      for (std::int64_t t = 0; t < work.packed.tiles; ++t) {
        work.packed.for_each_slot(row, t, [&](std::int32_t neuron, float value) {
          neurons[n] = neuron;
          values[n++] = value;
        });
      }
      offsets[row - first + 1] = n;
    }
    return row - first;
  }
};

// Rows [first, first + count) of the block, whose lists are there: a piece of columns of all rows
// after the other.
void run_pieces(const SparseRows& work, std::int64_t first, std::int64_t count, PieceLists& lists,
                float* sums, float* own) {
  const auto for_each_piece = [&](std::int64_t cols, auto f) {
    for (std::int64_t c = 0; c < cols; c += work.columns) f(c, std::min(work.columns, cols - c));
  };
  const auto element = static_cast<std::int64_t>(size_of(work.down.dtype));
  const std::int64_t all = lists.offsets[count];
  if (work.up) {
    for_each_piece(work.up->cols, [&](std::int64_t c, std::int64_t width) {
      const ConstMatrixView piece = columns_of(*work.up, c, width);
      std::fill_n(lists.dots + lists.room, all, 1.0F);
      for (std::int64_t r = 0; r < count; ++r) {
        work.kernels.sampled_dots(work.x.row_bytes(first + r) + c * element, piece,
                                  lists.of(r, lists.dots + lists.room));
      }
      for (std::int64_t i = 0; i < all; ++i) {
        lists.dots[i] = lists.dots[lists.room + i] + (c > 0 ? lists.dots[i] : 0.0F);
      }
    });
    for (std::int64_t i = 0; i < all; ++i) lists.values[i] *= lists.dots[i];
  }
  const std::int64_t cols = work.down.cols;
  for_each_piece(cols, [&](std::int64_t c, std::int64_t width) {
    const ConstMatrixView piece = columns_of(work.down, c, width);
    for (std::int64_t r = 0; r < count; ++r) {
      float* sum = sums != nullptr ? sums + (first + r) * cols + c : own;
      work.kernels.weighted_rows(piece, lists.of(r, lists.values), sums != nullptr, sum);
      work.kernels.round_row(sum, width, work.y.row_bytes(first + r) + c * element);
    }
  });
}

std::size_t list_bytes(const SparseRows& work) {
  const std::int64_t neurons = work.packed.tiles * work.packed.tile;
  return work.columns > 0 ? static_cast<std::size_t>(4 * PieceLists::room_of(work)) * sizeof(float)
                          : static_cast<std::size_t>(2 * neurons) * sizeof(float);
}

}  // namespace

int sparse_parts(std::int64_t rows, int threads) {
  return static_cast<int>(std::clamp<std::int64_t>(4L * threads / rows, 1, threads));
}

void take_scratch(Context& context, const SparseRows& work, std::int64_t rows, int threads) {
  const auto row = static_cast<std::size_t>(work.down.cols) * sizeof(float);
  for (int t = 0; t < threads; ++t) {
    context.scratch(t, kActive, list_bytes(work));
    context.scratch(t, kPartialY, row);
  }
  // The threads' partial sums lie together, in the first one's.
  if (work.parts > 1)
    context.scratch(0, kPartialY, static_cast<std::size_t>(rows * work.parts) * row);
}

void run_sparse_rows(Context& context, const SparseRows& work, float* sums, int thread) {
  const std::int64_t cols = work.down.cols;
  void* list = context.scratch(thread, kActive, 0);
  auto* partial = static_cast<float*>(context.scratch(work.parts > 1 ? 0 : thread, kPartialY, 0));
  if (work.columns > 0) {
    PieceLists lists(work, list);
    const std::int64_t units = (work.rows() + kPieceRows - 1) / kPieceRows;
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const std::int64_t end = work.rows() * (unit + 1) / units;
      for (std::int64_t row = work.rows() * unit / units; row < end;) {
        const std::int64_t count = lists.fill(work, row, end);
        run_pieces(work, row, count, lists, sums, partial);
        row += count;
      }
    }
    return;
  }
  if (work.parts == 1) {
#pragma omp for schedule(dynamic, 4)
    for (std::int64_t row = 0; row < work.rows(); ++row) {
      float* sum = sums != nullptr ? sums + row * cols : partial;
      run_part(work, row, 0, list, sums != nullptr, sum);
      work.kernels.round_row(sum, cols, work.y.row_bytes(row));
    }
    return;
  }
#pragma omp for schedule(static, 1)
  for (std::int64_t unit = 0; unit < work.rows() * work.parts; ++unit) {
    run_part(work, unit / work.parts, static_cast<int>(unit % work.parts), list, false,
             partial + unit * cols);
  }
#pragma omp for schedule(static)
  for (std::int64_t row = 0; row < work.rows(); ++row) {
    float* sum = partial + row * work.parts * cols;
    for (int part = 1; part < work.parts; ++part) {
      const float* other = sum + part * cols;
      for (std::int64_t k = 0; k < cols; ++k) sum[k] += other[k];
    }
    work.kernels.round_row(sum, cols, work.y.row_bytes(row));
  }
}

}  // namespace twell
