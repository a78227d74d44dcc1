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

// One entry of a vector's gradient.
void add(Result& to, std::int64_t at, double value, double magnitude) {
  to.value.at(0, at) += value;
  to.magnitude.at(0, at) += magnitude;
}

// What a row's norm needs of its places: s, c, and what rounding errors of c grow from.
struct RowNorm {
  double s = 1.0, c = 0.0, c_magnitude = 0.0;
};

}  // namespace

Gradients ffn_backward(const BackwardInput& in) {
  const std::int64_t neurons = in.gate.rows;
  const FfnForm& form = in.form;
  Gradients out = {zeros(in.x.rows, in.x.cols),
                   zeros(neurons, in.x.cols),
                   zeros(neurons, in.x.cols),
                   zeros(neurons, in.dy.cols),
                   {}};
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    out.vectors[i] = zeros(1, kFormVectors[i].entries(neurons, in.dy.cols));
  }
  for (std::int64_t r = 0; r < in.x.rows; ++r) {
    const auto u_of = [&](std::int64_t n) { return in.gated ? in.u.at(r, n) : 1.0; };
    const auto h_of = [&](std::int64_t n) {
      return combine(in.gated ? form.up : Activation::identity,
                     activated(form.gate.kind, in.v.at(r, n)), u_of(n));
    };
    std::vector<double> q(static_cast<std::size_t>(neurons)), q_magnitude(q.size());
    RowNorm norm;
    double squares = 0.0;
    for (std::int64_t n = 0; n < neurons; ++n) {
      if (in.fired.at(r, n) == 0.0) continue;
      const auto i = static_cast<std::size_t>(n);
      for (std::int64_t c = 0; c < in.dy.cols; ++c) {
        q[i] += in.dy.at(r, c) * in.down.at(n, c);
        q_magnitude[i] += std::abs(in.dy.at(r, c) * in.down.at(n, c));
      }
      if (!form.norm_epsilon) continue;
      const double weighted = h_of(n) * factor_of(form, n);
      squares += h_of(n) * h_of(n);
      norm.c += weighted * q[i];
      norm.c_magnitude += std::abs(weighted) * q_magnitude[i];
    }
    if (form.norm_epsilon) {
      norm.s = 1.0 / std::sqrt(squares / static_cast<double>(neurons) + *form.norm_epsilon);
      const double cube = norm.s * norm.s * norm.s / static_cast<double>(neurons);
      norm.c *= cube;
      norm.c_magnitude *= cube;
    }
    for (std::int64_t n = 0; n < neurons; ++n) {
      if (in.fired.at(r, n) == 0.0) continue;
      const auto i = static_cast<std::size_t>(n);
      const double h = h_of(n);
      const double scaled = norm.s * factor_of(form, n);
      const double sign = h > 0.0 ? 1.0 : h < 0.0 ? -1.0 : h;
      double dh = scaled * q[i] + (in.l1 == 0.0 ? 0.0 : in.l1 * sign);
      double magnitude = std::abs(scaled) * q_magnitude[i] + in.l1;
      if (form.norm_epsilon) {
        dh -= norm.c * h;
        magnitude += norm.c_magnitude * std::abs(h);
      }
      const auto gradients = uncombine(form.gate.kind, in.gated ? form.up : Activation::identity,
                                       1.0, in.v.at(r, n), u_of(n));
      const double dv = magnitude * std::abs(gradients.v);
      add(out.dx, r, in.gate, n, dh * gradients.v, dv);
      add(out.gate, n, in.x, r, dh * gradients.v, dv);
      add(out.vectors.gate_bias, n, dh * gradients.v, dv);
      if (in.gated) {
        const double du = magnitude * std::abs(gradients.u);
        add(out.dx, r, in.up, n, dh * gradients.u, du);
        add(out.up, n, in.x, r, dh * gradients.u, du);
        add(out.vectors.up_bias, n, dh * gradients.u, du);
      }
      add(out.down, n, in.dy, r, scaled * h, std::abs(scaled * h));
      add(out.vectors.norm_weight, n, norm.s * h * q[i], std::abs(norm.s * h) * q_magnitude[i]);
    }
    for (std::int64_t c = 0; c < in.dy.cols; ++c) {
      add(out.vectors.down_bias, c, in.dy.at(r, c), std::abs(in.dy.at(r, c)));
    }
  }
  return out;
}

}  // namespace twell::ref
