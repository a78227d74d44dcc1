#include <cmath>

#include "kernels/ref/ref.h"

namespace twell::ref {
namespace {

Result zeros(std::int64_t rows, std::int64_t cols) {
  return {Matrix(rows, cols), Matrix(rows, cols)};
}

// Row `row` of `to` += value · row `from` of `in`.
void add(Result& to, std::int64_t row, const Matrix& in, std::int64_t from, double value,
         double magnitude) {
  for (std::int64_t c = 0; c < in.cols; ++c) {
    to.value.at(row, c) += value * in.at(from, c);
    to.magnitude.at(row, c) += magnitude * std::abs(in.at(from, c));
  }
}

}  // namespace

Gradients ffn_backward(const BackwardInput& in) {
  const std::int64_t hidden = in.gate.rows;
  Gradients out = {zeros(in.x.rows, in.x.cols), zeros(hidden, in.x.cols), zeros(hidden, in.x.cols),
                   zeros(hidden, in.dy.cols)};
  for (std::int64_t r = 0; r < in.x.rows; ++r) {
    for (std::int64_t n = 0; n < hidden; ++n) {
      if (in.fired.at(r, n) == 0.0) continue;
      const double v = in.v.at(r, n);
      const double u = in.gated ? in.u.at(r, n) : 1.0;
      const double g = activated(in.kind, v);
      const double h = g * u;
      double dh = in.l1 == 0.0 ? 0.0 : in.l1 * (h > 0.0 ? 1.0 : h < 0.0 ? -1.0 : h);
      double magnitude = in.l1;
      for (std::int64_t c = 0; c < in.dy.cols; ++c) {
        dh += in.dy.at(r, c) * in.down.at(n, c);
        magnitude += std::abs(in.dy.at(r, c) * in.down.at(n, c));
      }
      const double to_v = u * activated_slope(in.kind, v);
      add(out.dx, r, in.gate, n, dh * to_v, magnitude * std::abs(to_v));
      add(out.gate, n, in.x, r, dh * to_v, magnitude * std::abs(to_v));
      if (in.gated) {
        add(out.dx, r, in.up, n, dh * g, magnitude * std::abs(g));
        add(out.up, n, in.x, r, dh * g, magnitude * std::abs(g));
      }
      add(out.down, n, in.dy, r, h, std::abs(h));
    }
  }
  return out;
}

}  // namespace twell::ref
