#include "torch_ops/form_arguments.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace twell::torch_ops {
namespace {

double number_of(const char* operation, const char* argument, std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || read != end) {
    fail(operation, argument, "expected a number, got \"" + std::string(text) + "\"");
  }
  return value;
}

// Takes what stands before the first `separator` off the text, and the separator.
std::string_view take(std::string_view& text, char separator) {
  const std::string_view head = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(head.size() + 1, text.size()));
  return head;
}

}  // namespace

const char* weight_name(std::size_t at) {
  constexpr std::array<const char*, kMatrices> kNames = {"gate", "up", "down"};
  return at < kMatrices ? kNames[at] : kFormVectors[at - kMatrices].name;
}

const char* gradient_name(std::size_t at) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (std::size_t i = 0; i < kWeights; ++i) out.push_back(std::string("d") + weight_name(i));
    return out;
  }();
  return names[at].c_str();
}

std::string gradients_schema() {
  std::string out = "(Tensor dx";
  for (std::size_t i = 0; i < kWeights; ++i) out += std::string(", Tensor ") + gradient_name(i);
  return out + ")";
}

FfnForm form_of(const char* operation, const std::string& text) {
  FfnForm form;
  double threshold = 0;
  std::string_view rest = text;
  const std::string activation(take(rest, ' '));
  while (!rest.empty()) {
    std::string_view value = take(rest, ' ');
    const std::string_view key = take(value, '=');
    if (key == "threshold") {
      threshold = number_of(operation, "threshold", value);
    } else if (key == "up") {
      form.up =
          activation_named(operation, "up_activation", kUpActivations, "", std::string(value));
    } else if (key == "norm") {
      form.norm_epsilon = static_cast<float>(number_of(operation, "norm_epsilon", value));
    } else {
      fail(operation, "form",
           "expected an activation and any of threshold=, up= and norm= behind it, got \"" + text +
               "\"");
    }
  }
  form.gate = activation_of(operation, activation, threshold);
  return form;
}

const std::optional<Tensor>& entry(std::span<const std::optional<Tensor>> list, std::size_t at) {
  static const std::optional<Tensor> none;
  return at < list.size() ? list[at] : none;
}

const Tensor& required(const char* operation, const char* name, const OptionalTensors& list,
                       std::size_t at) {
  const std::optional<Tensor>& tensor = entry(list, at);
  if (!tensor.has_value()) fail(operation, name, "expected a tensor, got none");
  return *tensor;
}

void require_kept(const char* operation, std::span<const Tensor> kept) {
  if (kept.size() != 3) {
    fail(operation, "kept",
         "expected offsets, neurons and values of ffn_train, got " + std::to_string(kept.size()) +
             " tensors");
  }
}

LayerArguments::LayerArguments(const char* name, const OptionalTensors& list,
                               const std::string& text, std::int64_t hot_neurons)
    : operation(name),
      weights(list),
      form(form_of(name, text)),
      hot(hot_neurons),
      gate(required(name, "gate", list, 0)),
      up(entry(list, 1)),
      down(required(name, "down", list, 2)) {
  if (list.size() > kWeights) {
    fail(name, "weights",
         "expected at most " + std::to_string(kWeights) + ", the last one " +
             weight_name(kWeights - 1) + ", got " + std::to_string(list.size()));
  }
}

CpuForm::CpuForm(const char* operation, const FfnForm& form,
                 std::span<const std::optional<Tensor>> vectors, DType dtype, std::int64_t neurons,
                 std::int64_t columns)
    : form_(form) {
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    const std::optional<Tensor>& tensor = entry(vectors, i);
    if (!tensor.has_value()) continue;
    const FormVector& about = kFormVectors[i];
    form_[i] = vector({operation, about.name, *tensor}, dtype, about.entries(neurons, columns));
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
