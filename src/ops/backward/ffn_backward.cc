// The backward pass: what fired by neurons, then dx by rows, then the weight gradients by neurons.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "ops/backward/weight_gradients.h"
#include "ops/plan.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/tuning.h"

namespace twell {
namespace {

constexpr const char* kBackward = "ffn_backward";

void check_pattern(const FfnBackward& in, DType dtype) {
  const FfnPatternView& p = in.pattern;
  require(p.rows == in.x.rows && p.cols == in.gate.rows && p.dtype == dtype, kBackward, "pattern",
          "expected one of ", name_of(dtype), " [", in.x.rows, ", ", in.gate.rows, "], got ",
          name_of(p.dtype), " [", p.rows, ", ", p.cols, "]");
  require(p.rows == 0 || p.offsets != nullptr, kBackward, "pattern", "offsets are null");
  require(p.nnz() == 0 || (p.neurons != nullptr && p.v != nullptr), kBackward, "pattern",
          "lists are null");
  require(p.nnz() == 0 || (p.u != nullptr) == in.up.has_value(), kBackward, "pattern",
          in.up ? "u is null, in a gated layer" : "u is there, in a layer without a gate");
}

void check(const FfnBackward& in, const FfnGradients& out) {
  const DType dtype = in.x.dtype;
  require_trained(kBackward, in.gate, in.up, in.down);
  require_weight_shape(kBackward, "gate", in.gate.type, in.gate.rows, in.gate.cols);
  require_x(kBackward, in.x, in.gate);
  const std::int64_t neurons = in.gate.rows;
  const auto weight = [&](const char* name, const WeightView& view, std::int64_t cols) {
    require_weight(kBackward, name, view, dtype, neurons, cols);
  };
  weight("gate", in.gate, in.gate.cols);
  if (in.up) weight("up", *in.up, in.gate.cols);
  weight("down", in.down, in.down.cols);
  require_matrix(kBackward, "dy", in.dy, dtype, in.x.rows, in.down.cols);
  require(in.x.rows <= std::numeric_limits<std::int32_t>::max(), kBackward, "x",
          "expected at most 2^31 - 1 rows, got ", in.x.rows);
  check_pattern(in, dtype);
  const FfnShape shape = {in.gate.cols, neurons, in.up.has_value(), dtype};
  require_form(kBackward, in.form, shape, in.down.cols);
  require(std::isfinite(in.l1), kBackward, "l1", "expected a finite gradient, got ", in.l1);
  require_matrix(kBackward, "dx", out.dx, dtype, in.x.rows, in.gate.cols);
  require(in.up.has_value() == out.up.has_value(), kBackward, "gradient of up",
          in.up ? "expected one, in a gated layer" : "expected none, in a layer without a gate");
  const auto gradient = [&](const char* name, ConstMatrixView view, std::int64_t cols) {
    require(view.dtype == DType::f32 || (view.dtype == dtype && !out.accumulate), kBackward, name,
            "expected f32", out.accumulate ? ", to add to" : " or the layer's dtype", ", got ",
            name_of(view.dtype));
    require_matrix(kBackward, name, view, view.dtype, neurons, cols);
  };
  gradient("gradient of gate", out.gate, in.gate.cols);
  if (out.up) gradient("gradient of up", *out.up, in.gate.cols);
  gradient("gradient of down", out.down, in.down.cols);
  require_vectors(kBackward, "gradient of ", out.vectors, shape, in.down.cols);
  require(in.form.norm_epsilon || out.vectors.norm_weight.empty(), kBackward,
          "gradient of norm_weight", "expected none, in a layer without a norm");
}

// A row that is not finite would make NaN of zeros of a product over all rows.
bool all_rows_finite(const Context& context, const FfnBackward& in, const Kernels& kernels) {
  std::atomic<bool> all = true;
  parallel_for(context, in.x.rows, [&](std::int64_t row) {
    if (!kernels.all_finite(in.x.row_bytes(row), in.x.cols) ||
        !kernels.all_finite(in.dy.row_bytes(row), in.dy.cols)) {
      all.store(false, std::memory_order_relaxed);
    }
  });
  return all;
}

// Where the coefficients go. Of hot neurons: rows as long as M, zeros past them.
void take_scratch(Context& context, BackwardCall& call) {
  const std::int64_t rows = call.in.x.rows;
  const std::int64_t cold = call.by_neuron.offsets[call.in.pattern.cols];
  const std::int64_t stride = SparseX::stride_of(call.kernels.x, rows);
  const auto bytes =
      static_cast<std::size_t>(call.hot.size() * stride) * size_of(call.kernels.x.dtype);
  // Hot ones first: rows of a GEMM are best at whole cache lines.
  auto* columns = static_cast<std::byte*>(context.scratch(
      0, kCoefficients,
      kCoefficientKinds * (bytes + static_cast<std::size_t>(cold) * sizeof(float))));
  auto* entries = reinterpret_cast<float*>(columns + kCoefficientKinds * bytes);
  for (int kind = 0; kind < kCoefficientKinds; ++kind) {
    if (!call.has(kind)) continue;
    call.entries[kind] = entries + kind * cold;
    SparseX& x = call.columns[kind];
    x = {columns + static_cast<std::size_t>(kind) * bytes, stride, call.kernels.x.dtype};
    const std::size_t rest = static_cast<std::size_t>(stride - rows) * size_of(x.dtype);
    for (std::int64_t n = 0; n < call.hot.size(); ++n) {
      std::fill_n(x.at(n, rows), rest, std::byte{});
    }
  }
}

}  // namespace

void ffn_backward(Context& context, const FfnBackward& in, const FfnGradients& out) {
  check(in, out);
  const FfnShape shape = {in.gate.cols, in.gate.rows, in.up.has_value(), in.x.dtype};
  static constexpr std::int64_t kNoRows[1] = {};
  FfnBackward call_in = in;
  if (in.x.rows == 0) call_in.pattern.offsets = kNoRows;
  const FfnPlan plan = plan_ffn(context, in.x.rows, shape, GateForm::packed);
  const Kernels& kernels = kernels_of(plan.tier, shape.dtype);
  const double none = std::numeric_limits<double>::infinity();
  const double least =
      all_rows_finite(context, in, kernels)
          ? std::max(1.0, plan.hot_share * static_cast<double>(in.x.rows) + plan.hot_rows)
          : none;
  const auto weight = [&](const WeightView& view) { return Weight(plan.tier, in.x.dtype, view); };
  BackwardCall call{call_in, out,
                    kernels, weight(in.gate),
                    {},      weight(in.down),
                    plan,    HotSet(context, shape.neurons),
                    {}};
  if (in.up) call.up = weight(*in.up);
  call.by_neuron = transpose(context, call_in.pattern, call.hot, least,
                             {call.gate, call.up.value_or(call.gate)});
  take_scratch(context, call);
  backward_rows(context, call);
  gather_weight_gradients(context, call);
  if (call.hot.size() > 0) multiply_weight_gradients(context, call);
  sum_vector_gradients(context, call);
}

}  // namespace twell
