#include "ops/sparse_rows.h"

#include <algorithm>

namespace twell {
namespace {

// The active neurons of a row in ascending order, numbered over all tiles.
template <class Slot>
std::int64_t gather(const TwellView& packed, std::int64_t row, std::int32_t* neurons,
                    float* values) {
  std::int64_t n = 0;
  for (std::int64_t t = 0; t < packed.tiles; ++t) {
    const std::int32_t count = packed.count(row, t);
    if (count == 0) continue;
    const auto* slots = reinterpret_cast<const Slot*>(packed.stored(row, t));
    const auto first = static_cast<std::int32_t>(t * packed.tile);
    for (std::int32_t i = 0; i < count; ++i, ++n) {
      neurons[n] = first + static_cast<std::int32_t>(slots[i].column);
      values[n] = value_of(slots[i]);
    }
  }
  return n;
}

// The part's share of one row: y32 = Σ over its neurons.
void run_part(const SparseRows& work, std::int64_t row, int part, void* scratch, float* y32) {
  auto* neurons = static_cast<std::int32_t*>(scratch);
  auto* values = reinterpret_cast<float*>(neurons + work.packed.tiles * work.packed.tile);
  const std::int64_t n = work.packed.slot_bytes == sizeof(TwellSlot16)
                             ? gather<TwellSlot16>(work.packed, row, neurons, values)
                             : gather<TwellSlot32>(work.packed, row, neurons, values);
  const std::int64_t begin = n * part / work.parts;
  const ActiveNeurons active = {neurons + begin, values + begin,
                                n * (part + 1) / work.parts - begin};
  const DType dtype = work.down.dtype;
  if (work.up.data != nullptr) {
    const auto* x = static_cast<const std::byte*>(work.x.data) +
                    static_cast<std::size_t>(row * work.x.row_stride) * size_of(dtype);
    twell_gated_ffn_kernel(work.tier, dtype).run(x, work.up, active);
  }
  twell_spmm_kernel(work.tier, dtype).accumulate(work.down, active, work.sums != nullptr, y32);
}

void store(const SparseRows& work, std::int64_t row, const float* y32) {
  auto* y = static_cast<std::byte*>(work.y.data) +
            static_cast<std::size_t>(row * work.y.row_stride) * size_of(work.y.dtype);
  twell_spmm_kernel(work.tier, work.down.dtype).store(y32, work.down.cols, y);
}

}  // namespace

int sparse_parts(std::int64_t rows, int threads) {
  return static_cast<int>(std::clamp<std::int64_t>(4L * threads / rows, 1, threads));
}

std::size_t active_bytes(std::int64_t hidden) {
  // Rounded up to whole tiles by the caller's layout: 65,536 columns at the most.
  return static_cast<std::size_t>(hidden) * (sizeof(std::int32_t) + sizeof(float));
}

std::size_t partial_bytes(const SparseRows& work) {
  const std::int64_t sums = work.parts > 1 ? work.rows * work.parts : 1;
  return static_cast<std::size_t>(sums * work.down.cols) * sizeof(float);
}

void run_sparse_rows(const SparseRows& work, void* active, float* partial) {
  const std::int64_t cols = work.down.cols;
  if (work.parts == 1) {
#pragma omp for schedule(dynamic, 4)
    for (std::int64_t row = 0; row < work.rows; ++row) {
      float* sum = work.sums != nullptr ? work.sums + row * cols : partial;
      run_part(work, row, 0, active, sum);
      store(work, row, sum);
    }
    return;
  }
#pragma omp for schedule(static, 1)
  for (std::int64_t unit = 0; unit < work.rows * work.parts; ++unit) {
    run_part(work, unit / work.parts, static_cast<int>(unit % work.parts), active,
             partial + unit * cols);
  }
#pragma omp for schedule(static)
  for (std::int64_t row = 0; row < work.rows; ++row) {
    float* sum = partial + row * work.parts * cols;
    for (int part = 1; part < work.parts; ++part) {
      const float* other = sum + part * cols;
      for (std::int64_t k = 0; k < cols; ++k) sum[k] += other[k];
    }
    store(work, row, sum);
  }
}

}  // namespace twell
