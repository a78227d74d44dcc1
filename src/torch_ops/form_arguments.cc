#include "torch_ops/form_arguments.h"

#include <algorithm>

namespace twell::torch_ops {

Activation up_activation_of(const char* operation, const std::string& name) {
  return activation_named(operation, "up_activation", kUpActivations, "", name);
}

CpuForm::CpuForm(const char* operation, const FormArguments& arguments, DType dtype,
                 std::int64_t neurons, std::int64_t columns) {
  form_.gate = arguments.gate(operation);
  form_.up = up_activation_of(operation, arguments.up_activation);
  const auto vector_of = [&](const char* name, const std::optional<Tensor>& tensor,
                             std::int64_t size) {
    return tensor.has_value() ? vector({operation, name, *tensor}, dtype, size)
                              : std::span<const float>();
  };
  form_.gate_bias = vector_of("gate_bias", arguments.gate_bias, neurons);
  form_.up_bias = vector_of("up_bias", arguments.up_bias, neurons);
  form_.down_bias = vector_of("down_bias", arguments.down_bias, columns);
  if (arguments.norm_epsilon.has_value()) {
    form_.norm = {vector_of("norm_weight", arguments.norm_weight, neurons),
                  static_cast<float>(*arguments.norm_epsilon)};
  } else if (arguments.norm_weight.has_value()) {
    fail(operation, "norm_weight", "expected norm_epsilon with it, got none");
  }
}

std::span<const float> CpuForm::vector(const Argument& argument, DType dtype, std::int64_t size) {
  const Tensor& tensor = argument.tensor;
  const DType have = dtype_of(argument);
  if (have != dtype && have != DType::f32) {
    fail(argument.operation, argument.name,
         std::string("expected f32") + (dtype == DType::f32 ? "" : " or bf16") + ", got " +
             name_of(have));
  }
  if (tensor.dim() != 1 || tensor.size(0) != size) {
    fail(argument.operation, argument.name,
         "expected shape [" + std::to_string(size) + "], got " + shape_of(tensor));
  }
  const void* data = elements_of(argument, tensor, have);
  const std::int64_t stride = tensor.stride(0);
  if (have == DType::f32 && stride == 1) {
    return {static_cast<const float*>(data), static_cast<std::size_t>(size)};
  }
  std::vector<float>& out = widened_.emplace_back(static_cast<std::size_t>(size));
  const auto widen = [&](const auto* values) {
    for (std::int64_t i = 0; i < size; ++i) {
      out[static_cast<std::size_t>(i)] = static_cast<float>(values[i * stride]);
    }
  };
  if (have == DType::f32) {
    widen(static_cast<const float*>(data));
  } else {
    widen(static_cast<const bf16*>(data));
  }
  return out;
}

}  // namespace twell::torch_ops
