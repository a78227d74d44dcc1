#include "cuda/bench/row_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "twell/dtype.h"
#include "twell/status.h"

namespace twell::bench {
namespace {

double widen(std::uint16_t bits) { return static_cast<float>(bf16::from_bits(bits)); }

}  // namespace

RowError worst_row(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b,
                   std::int64_t rows, std::int64_t cols) {
  const auto size = static_cast<std::size_t>(rows * cols);
  if (a.size() < size || b.size() < size) {
    throw Error(ErrorKind::invalid_argument, "worst_row", "matrices are smaller than their shape");
  }
  std::vector<double> difference(static_cast<std::size_t>(rows));
  std::vector<double> norm(difference.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < rows; ++r) {
    double off = 0.0;
    double sum = 0.0;
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto i = static_cast<std::size_t>(r * cols + c);
      const double d = widen(a[i]) - widen(b[i]);
      off += d * d;
      sum += widen(b[i]) * widen(b[i]);
    }
    difference[static_cast<std::size_t>(r)] = std::sqrt(off);
    norm[static_cast<std::size_t>(r)] = std::sqrt(sum);
  }
  // Of the rows that are finite: one that is not must not lift the floor under the others.
  double squares = 0.0;
  for (const double n : norm) squares += std::isfinite(n) ? n * n : 0.0;
  const double floor =
      kRowFloor * std::sqrt(squares / static_cast<double>(std::max<std::int64_t>(rows, 1)));

  RowError out;
  for (std::int64_t r = 0; r < rows; ++r) {
    const double off = difference[static_cast<std::size_t>(r)];
    const double scale = std::max(norm[static_cast<std::size_t>(r)], floor);
    double error = off == 0.0 ? 0.0 : off / scale;
    if (!std::isfinite(off) || !std::isfinite(scale)) {
      error = std::numeric_limits<double>::infinity();
    }
    if (!(error <= kRowBound)) out.wrong += 1;
    if (error > out.largest) {
      out.largest = error;
      out.row = r;
    }
  }
  return out;
}

}  // namespace twell::bench
