#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/ref.h"

namespace twell::ref {

Attention decode_attention(const Matrix& q, const Matrix& k, const Matrix& v) {
  Attention out{{Matrix(q.rows, v.cols), Matrix(q.rows, v.cols)}, Matrix(q.rows, 1)};
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.cols));
  for (std::int64_t head = 0; head < q.rows; ++head) {
    std::vector<double> p(static_cast<std::size_t>(k.rows));
    double largest = -std::numeric_limits<double>::infinity();
    for (std::int64_t key = 0; key < k.rows; ++key) {
      double magnitude = 0.0;
      double& score = p[static_cast<std::size_t>(key)];
      for (std::int64_t i = 0; i < q.cols; ++i) {
        score += q.at(head, i) * k.at(key, i) * scale;
        magnitude += std::abs(q.at(head, i) * k.at(key, i) * scale);
      }
      largest = std::max(largest, score);
      out.scores.at(head, 0) = std::max(out.scores.at(head, 0), magnitude);
    }
    double sum = 0.0;
    for (double& e : p) sum += e = std::exp(e - largest);
    for (std::int64_t key = 0; key < k.rows; ++key) {
      for (std::int64_t i = 0; i < v.cols; ++i) {
        const double term = p[static_cast<std::size_t>(key)] / sum * v.at(key, i);
        out.y.value.at(head, i) += term;
        out.y.magnitude.at(head, i) += std::abs(term);
      }
    }
  }
  return out;
}

}  // namespace twell::ref
