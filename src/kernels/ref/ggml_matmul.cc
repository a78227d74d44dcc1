#include <algorithm>
#include <cmath>

#include "kernels/ref/ref.h"
#include "twell/half.h"

namespace twell::ref {
namespace {

// q and u of the inputs of one block, or x and 1.
struct Block {
  std::vector<double> q;
  double unit = 0;
};
// The definition is in f32.
Block round_block(const Matrix& x, std::int64_t row, std::int64_t first, std::int64_t numbers) {
  Block out{std::vector<double>(static_cast<std::size_t>(numbers)), 0};
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

Block block_of(const Matrix& x, std::int64_t row, std::int64_t first, std::int64_t numbers,
               GgmlInputs inputs) {
  if (inputs == GgmlInputs::rounded) return round_block(x, row, first, numbers);
  const auto begin = x.data.begin() + row * x.cols + first;
  return {{begin, begin + numbers}, 1};
}

}  // namespace

Result ggml_matmul(const Matrix& x, const GgmlView& w, GgmlInputs inputs) {
  const GgmlTraits traits = traits_of(w.format);
  Result out{Matrix(x.rows, w.rows), Matrix(x.rows, w.rows)};
  for (std::int64_t b = 0; b < w.cols / traits.numbers; ++b) {
    std::vector<Block> rows;
    for (std::int64_t r = 0; r < x.rows; ++r) {
      rows.push_back(block_of(x, r, b * traits.numbers, traits.numbers, inputs));
    }
    for (std::int64_t d = 0; d < w.rows; ++d) {
      GgmlBlock block;
      take_block(w.format,
                 static_cast<const std::byte*>(w.blocks) + d * w.row_bytes() + b * traits.bytes,
                 &block);
      const double scale = float_of_half(block.scale);
      const double minimum = traits.minima ? float_of_half(block.minimum) : 0.0;
      std::vector<double> codes, minima;  // times those of their group
      for (std::int64_t i = 0; i < traits.numbers; ++i) {
        codes.push_back(block.scales[i / traits.group] * code_of(w.format, block, i));
        minima.push_back(block.minima[i / traits.group]);
      }
      for (std::int64_t r = 0; r < x.rows; ++r) {
        const Block& row = rows[static_cast<std::size_t>(r)];
        double products = 0, sums = 0, sizes = 0;
        for (std::size_t i = 0; i < codes.size(); ++i) {
          products += row.q[i] * codes[i];
          sums += row.q[i] * minima[i];
          sizes +=
              std::abs(row.q[i]) * (std::abs(scale * codes[i]) + std::abs(minimum * minima[i]));
        }
        const double plus = row.unit * scale * products;
        const double minus = traits.minima ? row.unit * minimum * sums : 0.0;  // u may be infinite
        out.value.at(r, d) += plus - minus;
        out.magnitude.at(r, d) +=
            inputs == GgmlInputs::rounded ? std::abs(plus) + std::abs(minus) : sizes;
      }
    }
  }
  return out;
}

}  // namespace twell::ref
