#include "ops/not_finite.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace twell {
namespace {

// f(element of y) writes NaN there.
template <class F>
void with_element(DType dtype, F f) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (dtype == DType::bf16) {
    f(bf16(kNan));
  } else {
    f(kNan);
  }
}

bool is_fired(const FfnPatternView& pattern, std::int64_t row, std::int32_t neuron) {
  return std::binary_search(pattern.neurons + pattern.offsets[row],
                            pattern.neurons + pattern.offsets[row + 1], neuron);
}

// A row of down as what 0 times it adds to y.
class NanColumns {
 public:
  explicit NanColumns(const ConstMatrixView& down, std::int64_t neuron) {
    const auto finite = [&](std::int64_t k) {
      return std::isfinite(down.dtype == DType::bf16 ? static_cast<float>(down.row<bf16>(neuron)[k])
                                                     : down.row<float>(neuron)[k]);
    };
    for (std::int64_t k = 0; k < down.cols; ++k) {
      if (!finite(k)) columns_.push_back(k);
    }
  }
  void fill(const MatrixView& y, std::int64_t row) const {
    with_element(y.dtype, [&](auto nan) {
      for (const std::int64_t k : columns_) y.row<decltype(nan)>(row)[k] = nan;
    });
  }

 private:
  std::vector<std::int64_t> columns_;
};

// Rows that are not all finite, ascending.
std::vector<std::int32_t> rows_not_finite(const Kernels& kernels, int threads,
                                          const ConstMatrixView& m) {
  std::vector<std::uint8_t> bad(static_cast<std::size_t>(m.rows));
  int any = 0;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : any)
  for (std::int64_t row = 0; row < m.rows; ++row) {
    const bool here = !kernels.all_finite(m.row_bytes(row), m.cols);
    bad[static_cast<std::size_t>(row)] = here;
    any |= static_cast<int>(here);
  }
  std::vector<std::int32_t> out;
  for (std::size_t row = 0; any != 0 && row < bad.size(); ++row) {
    if (bad[row] != 0) out.push_back(static_cast<std::int32_t>(row));
  }
  return out;
}

}  // namespace

void fill_nan(const MatrixView& y, std::int64_t row) {
  with_element(y.dtype, [&](auto nan) { std::fill_n(y.row<decltype(nan)>(row), y.cols, nan); });
}

bool spread_nan(Context& context, ConstMatrixView x, const FfnWeights& weights,
                const FfnPatternView& pattern, MatrixView y) {
  const Kernels& kernels = kernels_of(context.tier(), y.dtype);
  const auto bad = [&](const ConstMatrixView& m) {
    return rows_not_finite(kernels, context.threads(), m);
  };
  const std::vector<std::int32_t> of_down = bad(weights.down);
  for (const std::int32_t neuron : of_down) {
    const NanColumns columns(weights.down, neuron);
    for (std::int64_t row = 0; row < x.rows; ++row) {
      if (!is_fired(pattern, row, neuron)) columns.fill(y, row);
    }
  }
  if (!weights.up) return false;
  bool any = false;
  const auto all_of = [&](std::int64_t row) {
    fill_nan(y, row);
    any = true;
  };
  for (const std::int32_t neuron : bad(*weights.up)) {
    for (std::int64_t row = 0; row < x.rows; ++row) {
      if (!is_fired(pattern, row, neuron)) all_of(row);
    }
  }
  for (const std::int32_t row : bad(x)) {
    if (pattern.offsets[row + 1] - pattern.offsets[row] < pattern.hidden) all_of(row);
  }
  return any;
}

}  // namespace twell
