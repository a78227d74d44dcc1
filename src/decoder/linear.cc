#include "decoder/linear.h"

#include <torch/types.h>

#include <optional>

#include "decoder/operators.h"
#include "twell/packed.h"

namespace twell::lm {

at::Tensor packed_weight(const at::Tensor& weight) {
  const at::Tensor source = weight.contiguous();
  if (!source.is_cpu()) {
    static const auto pack = find_operator<at::Tensor(const at::Tensor&)>("twell::pack_weight");
    return pack.call(source);
  }
  const bool wide = source.scalar_type() == at::kFloat;
  const DType dtype = wide ? DType::f32 : DType::bf16;
  const std::int64_t rows = source.size(0);
  const std::int64_t cols = source.size(1);
  const auto elements =
      static_cast<std::int64_t>(packed_bytes(dtype, rows, cols) / source.element_size());
  at::Tensor packed = allocate_weights(elements / kPanel, kPanel, source.scalar_type());
  pack_weight({source.const_data_ptr(), dtype, rows, cols}, packed.mutable_data_ptr());
  const std::int64_t panels = packed_panels(rows);
  return wide ? packed.view({panels, -1, kPanel}) : packed.view({panels, -1, kPanel, 2});
}

at::Tensor unpacked_weight(const at::Tensor& packed, std::int64_t rows, std::int64_t cols) {
  using Signature = at::Tensor(const at::Tensor&, c10::SymInt, c10::SymInt);
  static const auto unpack = find_operator<Signature>("twell::unpack_weight");
  return unpack.call(packed, rows, cols);
}

bool packs_without_padding(std::int64_t rows, std::int64_t cols) {
  return rows % kPanel == 0 && packed_depth(DType::bf16, cols) == cols;
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (!packed.defined()) return at::linear(x, weight.tensor, bias.tensor);
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, c10::SymInt,
                               const std::optional<at::Tensor>&);
  static const auto linear = find_operator<Signature>("twell::linear");
  return linear.call(x, packed, weight.shape[0],
                     bias.tensor.defined() ? std::optional(bias.tensor) : std::nullopt);
}

at::Tensor linear_as_stored(const at::Tensor& x, const at::Tensor& weight) {
  constexpr std::int64_t kFewRows = 8;
  const at::ScalarType dtype = weight.scalar_type();
  const bool supported = (dtype == at::kBFloat16 || dtype == at::kFloat) && weight.is_cpu();
  if (!supported || x.numel() > kFewRows * x.size(-1) || at::GradMode::is_enabled()) {
    return at::linear(x, weight);
  }
  static const auto few =
      find_operator<at::Tensor(const at::Tensor&, const at::Tensor&)>("twell::linear_as_stored");
  return few.call(x, weight);
}

void Linear::pack(ParameterSource& source) {
  if (weight.tensor.scalar_type() != at::kBFloat16 || !weight.tensor.is_cpu()) return;
  const at::NoGradGuard no_grad;
  packed = packed_weight(weight.tensor.detach());
  source.release(weight);
}

}  // namespace twell::lm
