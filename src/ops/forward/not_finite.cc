#include "ops/forward/not_finite.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/team.h"
#include "ops/hidden.h"

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

ActiveNeurons fired_of(const FfnPatternView& pattern, std::int64_t row) {
  return {pattern.neurons + pattern.offsets[row], nullptr,
          pattern.offsets[row + 1] - pattern.offsets[row]};
}

bool contains(const ActiveNeurons& fired, std::int32_t neuron) {
  return std::binary_search(fired.neurons, fired.neurons + fired.count, neuron);
}

// Whether fu(u) of a neuron is finite, for a row of x or of Wu that is not.
bool is_up_finite(const FfnForm& form, const Weight& up, const void* x, std::int32_t neuron) {
  if (form.up == Activation::identity) return false;
  float u = 0.0F;
  up.dots(x, &neuron, 1, &u);
  add_up_bias(form, &neuron, 1, &u);
  activate_up(form, 1, &u);
  return std::isfinite(u);
}

// A row of down as what 0 times it adds to y.
class NanColumns {
 public:
  NanColumns(const Weight& down, std::int32_t neuron) {
    constexpr float kOne = 1.0F;
    std::vector<float> row(static_cast<std::size_t>(down.cols));
    down.combine({&neuron, &kOne, 1}, false, row.data());
    for (std::int64_t k = 0; k < down.cols; ++k) {
      if (!std::isfinite(row[static_cast<std::size_t>(k)])) columns_.push_back(k);
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

// Rows that are not all finite by finite(row), ascending.
template <class Finite>
std::vector<std::int32_t> rows_not_finite(const Context& context, std::int64_t rows,
                                          Finite finite) {
  std::vector<std::uint8_t> bad(static_cast<std::size_t>(rows));
  parallel_for(context, rows, [&](std::int64_t row) {
    bad[static_cast<std::size_t>(row)] = static_cast<std::uint8_t>(!finite(row));
  });
  std::vector<std::int32_t> out;
  for (std::size_t row = 0; row < bad.size(); ++row) {
    if (bad[row] != 0) out.push_back(static_cast<std::int32_t>(row));
  }
  return out;
}

std::vector<std::int32_t> places_not_finite(std::span<const float> values) {
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) out.push_back(static_cast<std::int32_t>(i));
  }
  return out;
}

}  // namespace

void fill_nan(const MatrixView& y, std::int64_t row) {
  with_element(y.dtype, [&](auto nan) { std::fill_n(y.row<decltype(nan)>(row), y.cols, nan); });
}

bool skips_nan(const FfnForm& form, const Weight& up, const void* x, const ActiveNeurons& fired) {
  for (std::int64_t neuron = 0, next = 0; neuron < up.rows; ++neuron) {
    if (next < fired.count && fired.neurons[next] == neuron) {
      ++next;
    } else if (!is_up_finite(form, up, x, static_cast<std::int32_t>(neuron))) {
      return true;
    }
  }
  return false;
}

bool spread_nan(Context& context, ConstMatrixView x, const UpDown& weights, const FfnForm& form,
                const FfnPatternView& pattern, MatrixView y) {
  const auto bad = [&](const Weight& w) {
    return rows_not_finite(context, w.rows, [&](std::int64_t row) { return w.row_finite(row); });
  };
  // f(row) for the rows that do not fire a neuron.
  const auto for_each_without = [&](std::int32_t neuron, auto f) {
    for (std::int64_t row = 0; row < x.rows; ++row) {
      if (!contains(fired_of(pattern, row), neuron)) f(row);
    }
  };
  for (const std::int32_t neuron : bad(weights.down)) {
    const NanColumns columns(weights.down, neuron);
    for_each_without(neuron, [&](std::int64_t row) { columns.fill(y, row); });
  }
  for (std::int64_t neuron = 0; scales_hidden(form) && neuron < weights.down.rows; ++neuron) {
    if (std::isfinite(factor_of(form, neuron))) continue;
    for_each_without(static_cast<std::int32_t>(neuron),
                     [&](std::int64_t row) { fill_nan(y, row); });
  }
  if (!weights.up) return false;
  const Weight& up = *weights.up;
  bool any = false;
  const auto all_of = [&](std::int64_t row) {
    fill_nan(y, row);
    any = true;
  };
  for (const auto& of_up : {bad(up), places_not_finite(form.up_bias)}) {
    for (const std::int32_t neuron : of_up) {
      for_each_without(neuron, [&](std::int64_t row) {
        if (!is_up_finite(form, up, x.row_bytes(row), neuron)) all_of(row);
      });
    }
  }
  const Kernels& kernels = kernels_of(context.tier(), x.dtype);
  const auto bad_x = rows_not_finite(context, x.rows, [&](std::int64_t row) {
    return kernels.all_finite(x.row_bytes(row), x.cols);
  });
  for (const std::int32_t row : bad_x) {
    if (skips_nan(form, up, x.row_bytes(row), fired_of(pattern, row))) all_of(row);
  }
  return any;
}

}  // namespace twell
