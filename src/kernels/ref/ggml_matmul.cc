#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"
#include "twell/half.h"

namespace twell::ref {
namespace {

// q and u of the inputs of one block. The definition is in f32.
struct RoundedBlock {
  std::vector<double> q;
  double unit = 0;
};
RoundedBlock round_block(const Matrix& x, std::int64_t row, std::int64_t first,
                         std::int64_t numbers) {
  RoundedBlock out{std::vector<double>(static_cast<std::size_t>(numbers)), 0};
  float largest = 0;
  for (std::int64_t i = first; i < first + numbers; ++i) {
    const auto size = static_cast<float>(std::abs(x.at(row, i)));
    if (!std::isfinite(size)) return {std::move(out.q), std::nan("")};
    largest = std::max(largest, size);
  }
  const float inverse = 127.0F / largest;
  if (std::isinf(inverse)) return out;
  for (std::int64_t i = 0; i < numbers; ++i) {
    out.q[static_cast<std::size_t>(i)] =
        std::nearbyint(static_cast<float>(x.at(row, first + i)) * inverse);
  }
  out.unit = numbers == 32 ? float_of_half(half_of_float(largest / 127.0F)) : 1.0F / inverse;
  return out;
}

}  // namespace

Result ggml_matmul(const Matrix& x, const GgmlView& w) {
  const GgmlTraits traits = traits_of(w.format);
  Result out{Matrix(x.rows, w.rows), Matrix(x.rows, w.rows)};
  for (std::int64_t b = 0; b < w.cols / traits.numbers; ++b) {
    std::vector<RoundedBlock> rows;
    for (std::int64_t r = 0; r < x.rows; ++r) {
      rows.push_back(round_block(x, r, b * traits.numbers, traits.numbers));
    }
    for (std::int64_t d = 0; d < w.rows; ++d) {
      GgmlBlock block;
      take_block(w.format,
                 static_cast<const std::byte*>(w.blocks) + d * w.row_bytes() + b * traits.bytes,
                 &block);
      for (std::int64_t r = 0; r < x.rows; ++r) {
        const RoundedBlock& row = rows[static_cast<std::size_t>(r)];
        double products = 0, sums = 0;
        for (std::int64_t i = 0; i < traits.numbers; ++i) {
          const double q = row.q[static_cast<std::size_t>(i)];
          const std::int64_t group = i / traits.group;
          products += q * block.scales[group] * code_of(w.format, block, i);
          sums += q * block.minima[group];
        }
        const double plus = row.unit * float_of_half(block.scale) * products;
        const double minus = traits.minima ? row.unit * float_of_half(block.minimum) * sums
                                           : 0.0;  // u may be infinite
        out.value.at(r, d) += plus - minus;
        out.magnitude.at(r, d) += std::abs(plus) + std::abs(minus);
      }
    }
  }
  return out;
}

}  // namespace twell::ref
