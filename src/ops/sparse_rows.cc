#include "ops/sparse_rows.h"

#include <omp.h>

#include <algorithm>

#include "ops/gather_pieces.h"
#include "ops/scratch.h"

namespace twell {
namespace {

// The part's share of one row: y32 (+)= Σ over its neurons.
void run_part(const SparseRows& work, std::int64_t row, int part, void* list, bool add,
              float* y32) {
  auto* neurons = static_cast<std::int32_t*>(list);
  auto* values = reinterpret_cast<float*>(neurons + work.packed.tiles * work.packed.tile);
  const std::int64_t n = work.packed.list_row(row, neurons, values);
  const std::int64_t begin = n * part / work.parts;
  const ActiveNeurons active = {neurons + begin, values + begin,
                                n * (part + 1) / work.parts - begin};
  if (work.up) work.kernels.sampled_dots(work.x.row_bytes(row), *work.up, active);
  work.kernels.weighted_rows(work.down, active, add, y32);
}

std::size_t list_bytes(const SparseRows& work) {
  if (work.columns > 0) return GatherPieces::bytes(work);
  return static_cast<std::size_t>(work.packed.tiles * work.packed.tile) *
         (sizeof(std::int32_t) + sizeof(float));
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
    GatherPieces pieces(work, list, partial);
    const std::int64_t share = work.rows() / omp_get_num_threads();
    const std::int64_t unit_rows = std::clamp<std::int64_t>(share, 32, GatherPieces::kRows);
    const std::int64_t units = (work.rows() + unit_rows - 1) / unit_rows;
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t unit = 0; unit < units; ++unit) {
      pieces.run(work.rows() * unit / units, work.rows() * (unit + 1) / units, sums);
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
