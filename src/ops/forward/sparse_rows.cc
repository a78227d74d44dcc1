#include "ops/forward/sparse_rows.h"

#include <algorithm>

#include "ops/forward/gather_pieces.h"
#include "ops/hidden.h"
#include "ops/scratch.h"

namespace twell {
namespace {

// Slots of a row: no row has more places.
std::int64_t slots_of(const SparseRows& work) { return work.packed.tiles * work.packed.tile; }

// The part's share of one row: y32 (+)= Σ over its neurons. Returns their Σ h², with a norm.
double run_part(const SparseRows& work, std::int64_t row, int part, void* list, bool add,
                float* y32) {
  auto* all = static_cast<std::int32_t*>(list);
  auto* g = reinterpret_cast<float*>(all + slots_of(work));
  const std::int64_t n = work.packed.list_row(row, all, g);
  const std::int64_t begin = n * part / work.parts;
  std::int64_t count = n * (part + 1) / work.parts - begin;
  std::int32_t* neurons = all + begin;
  float* values = g + begin;
  if (work.weights.up) {
    float* dots = g + slots_of(work);
    work.weights.up->dots(work.x.row_bytes(row), neurons, count, dots);
    add_up_bias(work.form, neurons, count, dots);
    count = combine_places(work.form, neurons, values, dots, count);
  }
  const double squares = scale_places(work.form, neurons, values, count);
  work.weights.down.combine({neurons, values, count}, add, y32);
  return squares;
}

std::size_t list_bytes(const SparseRows& work) {
  if (work.columns > 0) return GatherPieces::bytes(work);
  return static_cast<std::size_t>(slots_of(work)) * (sizeof(std::int32_t) + 2 * sizeof(float));
}

// y of a row from its sums.
void finish(const SparseRows& work, std::int64_t row, double squares, float* sum) {
  const float scale = norm_factor(work.form, squares, work.weights.down.rows);
  const Weight& down = work.weights.down;
  finish_row(work.kernels, work.form, down, scale, 0, down.cols, sum, work.y.row_bytes(row));
}

}  // namespace

void take_scratch(Context& context, const SparseRows& work, std::int64_t rows, int threads) {
  const auto row = static_cast<std::size_t>(work.weights.down.cols) * sizeof(float);
  for (int t = 0; t < threads; ++t) {
    context.scratch(t, kActive, list_bytes(work));
    context.scratch(t, kPartialY, row);
  }
  // The threads' partial sums lie together, in the first one's, and behind them their Σ h².
  if (work.parts > 1) {
    context.scratch(0, kPartialY,
                    static_cast<std::size_t>(rows * work.parts) * (row + sizeof(float)));
  }
}

void run_sparse_rows(Team& team, Context& context, const SparseRows& work) {
  const int thread = team.thread();
  const std::int64_t cols = work.weights.down.cols;
  void* list = context.scratch(thread, kActive, 0);
  auto* partial = static_cast<float*>(context.scratch(work.parts > 1 ? 0 : thread, kPartialY, 0));
  if (work.columns > 0) {
    GatherPieces pieces(work, list, partial);
    const std::int64_t share = work.rows() / team.threads();
    const std::int64_t unit_rows = std::clamp<std::int64_t>(share, 32, GatherPieces::kRows);
    const std::int64_t units = (work.rows() + unit_rows - 1) / unit_rows;
    team.for_dynamic(units, 1, [&](std::int64_t unit) {
      pieces.run(work.rows() * unit / units, work.rows() * (unit + 1) / units);
    });
    return;
  }
  if (work.parts == 1) {
    team.for_dynamic(work.rows(), 4, [&](std::int64_t row) {
      float* sum = work.sums != nullptr ? work.sums + row * cols : partial;
      double squares = run_part(work, row, 0, list, work.sums != nullptr, sum);
      if (work.squares != nullptr) squares += work.squares[row];
      finish(work, row, squares, sum);
    });
    return;
  }
  const std::int64_t units = work.rows() * work.parts;
  float* part_squares = partial + units * cols;
  team.for_static_chunk1(units, [&](std::int64_t unit) {
    part_squares[unit] =
        static_cast<float>(run_part(work, unit / work.parts, static_cast<int>(unit % work.parts),
                                    list, false, partial + unit * cols));
  });
  team.for_static(work.rows(), [&](std::int64_t row) {
    float* sum = partial + row * work.parts * cols;
    double squares = part_squares[row * work.parts];
    for (int part = 1; part < work.parts; ++part) {
      const float* other = sum + part * cols;
      for (std::int64_t k = 0; k < cols; ++k) sum[k] += other[k];
      squares += part_squares[row * work.parts + part];
    }
    finish(work, row, squares, sum);
  });
}

}  // namespace twell
