// The specification: every operation as scalar fp64 loops over plain matrices, one file per
// operation.
//
// Each also returns the magnitudes that rounding errors grow from, so that a test derives its bound
// instead of tuning one.
#pragma once

#include <cstdint>
#include <vector>

#include "twell/ffn.h"
#include "twell/ggml.h"

namespace twell::ref {

// Row-major fp64 matrix.
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> data;

  Matrix() = default;
  Matrix(std::int64_t rows_, std::int64_t cols_)
      : rows(rows_), cols(cols_), data(static_cast<std::size_t>(rows_ * cols_)) {}
  double& at(std::int64_t r, std::int64_t c) {
    return data[static_cast<std::size_t>(r * cols + c)];
  }
  double at(std::int64_t r, std::int64_t c) const {
    return data[static_cast<std::size_t>(r * cols + c)];
  }
};

// Exact widening of bf16 or f32.
Matrix widen(ConstMatrixView view);

struct Result {
  Matrix value;
  Matrix magnitude;  // Σ |term| of the sum behind each element
};

double activate(double v, const ActivationSpec& activation);

// act(x Wᵀ); magnitude is that of x Wᵀ.
Result gemm_relu_twell(const Matrix& x, const Matrix& weight, const ActivationSpec& activation);
// (g ⊙ (x Wuᵀ)) Wd; magnitude Σ_n |g| (Σ |x||Wu|) |Wd|.
Result twell_gated_ffn(const Matrix& x, const Matrix& gate, const Matrix& up, const Matrix& down);
// h Wd; magnitude Σ |h||Wd|.
Result twell_spmm(const Matrix& hidden, const Matrix& down);

// The whole layer with what its form adds, nothing skipped. Without a gate `up` is empty.
struct Layer {
  Matrix x, gate, up, down;
  FfnForm form;
};
struct LayerResult {
  Result v, u;                // magnitudes: of the dot products, and |bias|
  Matrix h;                   // before the norm
  std::vector<double> scale;  // [M] s
  Matrix y;
};
LayerResult ffn(const Layer& layer);

// twell/linear.h
Matrix round_inputs(const Matrix& x);

// twell/ggml.h. magnitude: of what f32 sums have as terms, one or two a block of rounded inputs,
// whose own products are exact.
Result ggml_matmul(const Matrix& x, const GgmlView& w, GgmlInputs inputs);

// softmax(q Kᵀ / √d) V of the queries of some heads, [heads, d], that share K and V, [keys, d].
struct Attention {
  Result y;       // magnitude: Σ p |v|
  Matrix scores;  // [heads, 1]: the largest Σ |q||k| / √d of a key
};
Attention decode_attention(const Matrix& q, const Matrix& k, const Matrix& v);

// The backward pass of a layer at the places that fired, from what forward kept of them.
struct BackwardInput {
  Matrix dy, x, gate, up, down;  // without a gate: Wu in its place
  Matrix fired, v, u;            // [M, H]; fired: not 0
  bool gated = true;
  FfnForm form;
  double l1 = 0.0;
};
struct Gradients {
  Result dx, gate, up, down;
  FormVectors<Result> vectors;  // [1, H], of down's bias [1, D]
};
Gradients ffn_backward(const BackwardInput& in);

}  // namespace twell::ref
