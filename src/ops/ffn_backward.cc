// The backward pass: what fired by neurons, then dx by rows, then the weight gradients by neurons.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/backward.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/tuning.h"

namespace twell {
namespace {

constexpr const char* kOperation = "ffn_backward";

void check_pattern(const FfnBackward& in, DType dtype) {
  const FfnPatternView& p = in.pattern;
  require(p.rows == in.x.rows && p.hidden == in.gate.rows && p.dtype == dtype, kOperation,
          "pattern", "expected one of ", name_of(dtype), " [", in.x.rows, ", ", in.gate.rows,
          "], got ", name_of(p.dtype), " [", p.rows, ", ", p.hidden, "]");
  require(p.rows == 0 || p.offsets != nullptr, kOperation, "pattern", "offsets are null");
  require(p.nnz() == 0 || (p.neurons != nullptr && p.v != nullptr), kOperation, "pattern",
          "lists are null");
  require(p.nnz() == 0 || (p.u != nullptr) == in.up.has_value(), kOperation, "pattern",
          in.up ? "u is null, in a gated layer" : "u is there, in a layer without a gate");
}

void check(const FfnBackward& in, const FfnGradients& out) {
  const DType dtype = in.gate.dtype;
  require_weight_shape(kOperation, "gate", dtype, in.gate.rows, in.gate.cols);
  const std::int64_t hidden = in.gate.rows;
  const auto weight = [&](const char* name, ConstMatrixView view, std::int64_t cols) {
    require_matrix(kOperation, name, view, dtype, hidden, cols);
  };
  weight("gate", in.gate, in.gate.cols);
  if (in.up) weight("up", *in.up, in.gate.cols);
  weight("down", in.down, in.down.cols);
  require_matrix(kOperation, "x", in.x, dtype, in.x.rows, in.gate.cols);
  require_matrix(kOperation, "dy", in.dy, dtype, in.x.rows, in.down.cols);
  require(in.x.rows <= std::numeric_limits<std::int32_t>::max(), kOperation, "x",
          "expected at most 2^31 - 1 rows, got ", in.x.rows);
  check_pattern(in, dtype);
  require_activation(kOperation, in.activation);
  require(in.l1 >= 0.0F && std::isfinite(in.l1), kOperation, "l1",
          "expected a finite coefficient of at least 0, got ", in.l1);
  require_matrix(kOperation, "dx", out.dx, dtype, in.x.rows, in.gate.cols);
  require(in.up.has_value() == out.up.has_value(), kOperation, "gradient of up",
          in.up ? "expected one, in a gated layer" : "expected none, in a layer without a gate");
  const auto gradient = [&](const char* name, ConstMatrixView view, std::int64_t cols) {
    require(view.dtype == DType::f32 || (view.dtype == dtype && !out.accumulate), kOperation, name,
            "expected f32", out.accumulate ? ", to add to" : " or the layer's dtype", ", got ",
            name_of(view.dtype));
    require_matrix(kOperation, name, view, view.dtype, hidden, cols);
  };
  gradient("gradient of gate", out.gate, in.gate.cols);
  if (out.up) gradient("gradient of up", *out.up, in.gate.cols);
  gradient("gradient of down", out.down, in.down.cols);
}

}  // namespace

void ffn_backward(Context& context, const FfnBackward& in, const FfnGradients& out) {
  check(in, out);
  const FfnShape shape = {in.gate.cols, in.gate.rows, in.up.has_value(), in.gate.dtype};
  static constexpr std::int64_t kNoRows[1] = {};
  FfnBackward call_in = in;
  if (in.x.rows == 0) call_in.pattern.offsets = kNoRows;
  const FfnPlan plan = plan_ffn(context, in.x.rows, shape, GateForm::packed);
  const std::int64_t nnz = call_in.pattern.nnz();
  auto* coefficients = static_cast<float*>(
      context.scratch(0, kCoefficients, static_cast<std::size_t>(3 * nnz) * sizeof(float)));
  BackwardCall call{call_in,
                    out,
                    kernels_of(plan.tier, shape.dtype),
                    plan,
                    transpose(context, call_in.pattern),
                    HotSet(context, shape.hidden),
                    coefficients,
                    in.up ? coefficients + nnz : nullptr,
                    coefficients + 2 * nnz};
  for (std::int64_t n = 0; n < shape.hidden; ++n) {
    call.hot.counts()[n] = static_cast<std::int32_t>(call.by_neuron.count(n));
  }
  const double least =
      std::max(1.0, plan.hot_share * static_cast<double>(in.x.rows) + plan.hot_rows);
#pragma omp parallel num_threads(plan.threads)
  if (in.up) {
    call.hot.choose(least, {in.gate, *in.up}, call.kernels);
  } else {
    call.hot.choose(least, {in.gate}, call.kernels);
  }
  backward_rows(context, call);
  backward_neurons(context, call);
}

}  // namespace twell
