#include "decoder/linear.h"

#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "decoder/cpu_context.h"
#include "decoder/ggml_layers.h"
#include "decoder/operators.h"
#include "decoder/sparse_operators.h"
#include "twell/linear.h"
#include "twell/packed.h"
#include "twell/status.h"

namespace twell::lm {

at::Tensor packed_weight(const at::Tensor& weight) {
  const at::Tensor source = weight.contiguous();
  if (!source.is_cpu()) {
    static const auto pack = find_operator<at::Tensor(const at::Tensor&)>("twell::pack_weight");
    return pack.call(source);
  }
  const WeightView view = weight_view(source);
  at::Tensor packed = allocate_weights(view.rows, packed_extent(view.type, view.rows, view.cols),
                                       source.scalar_type());
  pack_weight(view, packed.mutable_data_ptr());
  return packed.unsqueeze(-1);
}

at::Tensor unpacked_weight(const at::Tensor& packed) {
  static const auto unpack = find_operator<at::Tensor(const at::Tensor&)>("twell::unpack_weight");
  return unpack.call(packed);
}

bool packs_without_padding(std::int64_t rows, std::int64_t cols) {
  return rows % kPanel == 0 && packed_depth(WeightType::bf16, cols) == cols;
}

at::Tensor linear_in_f32(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  constexpr std::int64_t kElements = 16 << 20;
  const std::int64_t rows = weight.size(0);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / weight.size(1));
  const at::Tensor wide = x.to(at::kFloat);
  std::vector<at::Tensor> parts;
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t last = std::min(rows, first + step);
    std::optional<at::Tensor> part_of_bias;
    if (bias.defined()) part_of_bias = bias.slice(0, first, last).to(at::kFloat);
    parts.push_back(at::linear(wide, weight.slice(0, first, last).to(at::kFloat), part_of_bias)
                        .to(x.scalar_type()));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, -1);
}

at::Tensor linear_of(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  constexpr std::int64_t kConverted = 64;
  static const bool multiplies_bf16 = [] {
    const auto found =
        c10::Dispatcher::singleton().findSchema({"mkldnn::_is_mkldnn_bf16_supported", ""});
    return !found || found->typed<bool()>().call();
  }();
  const bool convert = !multiplies_bf16 && x.is_cpu() && x.scalar_type() == at::kBFloat16 &&
                       weight.numel() > 0 && x.numel() >= kConverted * x.size(-1);
  if (convert) return linear_in_f32(x, weight, bias);
  return bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (ggml) return ggml_linear(x, *ggml, bias.tensor);
  if (!packed.defined()) return linear_of(x, weight.tensor, bias.tensor);
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static const auto linear = find_operator<Signature>("twell::linear");
  return linear.call(x, packed, bias.tensor.defined() ? std::optional(bias.tensor) : std::nullopt);
}

namespace {

// y [..., outputs] of f32 from multiply(x [M, inputs], y [M, outputs]).
template <class Multiply>
at::Tensor f32_rows(const at::Tensor& x, std::int64_t outputs, const Multiply& multiply) {
  const at::Tensor in = x.reshape({-1, x.size(-1)}).contiguous();
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = outputs;
  at::Tensor y = at::empty({in.size(0), outputs}, at::TensorOptions(at::kFloat));
  multiply(matrix_view(in), MatrixView(y.mutable_data_ptr(), DType::f32, y.size(0), outputs));
  return y.view(shape);
}

}  // namespace

at::Tensor Linear::sums(const at::Tensor& x) const {
  if (!packed.defined()) return (*this)(x).to(at::kFloat);
  const at::Tensor offset = bias.tensor.defined() ? bias.tensor.to(x.scalar_type()) : at::Tensor();
  return f32_rows(x, packed_view.rows, [&](ConstMatrixView in, MatrixView y) {
    linear(cpu_context(), in, packed_view, offset.defined() ? offset.const_data_ptr() : nullptr, y);
  });
}

at::Tensor sums_as_stored(const at::Tensor& x, const at::Tensor& weight) {
  return f32_rows(x, weight.size(0), [&](ConstMatrixView in, MatrixView y) {
    twell::linear_as_stored(cpu_context(), in, weight_view(weight), y);
  });
}

at::Tensor linear_as_stored(const at::Tensor& x, const at::Tensor& weight) {
  constexpr std::int64_t kFewRows = 8;
  const at::ScalarType dtype = weight.scalar_type();
  const bool supported = (dtype == at::kBFloat16 || dtype == at::kFloat) && weight.is_cpu();
  if (!supported || x.numel() > kFewRows * x.size(-1) || at::GradMode::is_enabled()) {
    return linear_of(x, weight);
  }
  static const auto few = find_operator<at::Tensor(const at::Tensor&, const at::Tensor&, bool)>(
      "twell::linear_as_stored");
  return few.call(x, weight, false);
}

at::Tensor rounded_inputs(const at::Tensor& x) {
  static const auto round = find_operator<at::Tensor(const at::Tensor&)>("twell::round_inputs");
  return round.call(x);
}

void Linear::pack(ParameterSource& source, GgmlPacking how) {
  if (weight.format) {
    const Context& context = cpu_context();
    try {
      const GgmlView blocks = ggml_view(*weight.format, weight.tensor);
      ggml.emplace(GgmlWeight{{blocks, how.order, &context}, how.inputs});
    } catch (const Error& error) {
      throw Error(error.kind(), source.where(weight), error.what());
    }
    source.release(weight);
    return;
  }
  const bool supported = weight.tensor.scalar_type() == at::kBFloat16 || has_codes();
  if (!supported || !weight.tensor.is_cpu()) return;
  const at::NoGradGuard no_grad;
  const WeightView stored = weight_view(weight.tensor);
  packed = packed_weight(weight.tensor.detach());
  packed_view = twell::packed_view(packed.const_data_ptr(), stored.type, stored.rows, stored.cols);
  source.release(weight);
}

std::int64_t Linear::own_bytes() const {
  if (ggml) return ggml->matrix.bytes();
  return packed.defined() ? static_cast<std::int64_t>(packed.nbytes()) : 0;
}

}  // namespace twell::lm
