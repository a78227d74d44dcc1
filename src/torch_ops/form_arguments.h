// A layer's form (twell/ffn_form.h) as the operators take it: their last arguments, the same of
// all that compute a feed-forward layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "torch_ops/arguments.h"
#include "twell/ffn_form.h"

namespace twell::torch_ops {

// Of a schema. `hot` is no part of the form; it stands where callers have it by position.
#define TWELL_FORM_SCHEMA                                                          \
  "str activation=\"relu\", float threshold=0., int hot=0, "                       \
  "str up_activation=\"identity\", Tensor? gate_bias=None, Tensor? up_bias=None, " \
  "Tensor? down_bias=None, Tensor? norm_weight=None, float? norm_epsilon=None"

// Vectors are of the layer's dtype or f32. A norm is there where its epsilon is.
struct FormArguments {
  const std::string& activation;
  double threshold;
  std::int64_t hot;
  const std::string& up_activation;
  const std::optional<Tensor>&gate_bias, &up_bias, &down_bias, &norm_weight;
  const std::optional<double>& norm_epsilon;

  ActivationSpec gate(const char* operation) const {
    return activation_of(operation, activation, threshold);
  }
};

// kFunction(form, a...) as the dispatcher calls it: (a..., the form's arguments one by one).
template <auto* kFunction>
struct WithForm;
template <class Result, class... A, Result (*kFunction)(const FormArguments&, A...)>
struct WithForm<kFunction> {
  static Result call(A... a, const std::string& activation, double threshold, std::int64_t hot,
                     const std::string& up_activation, const std::optional<Tensor>& gate_bias,
                     const std::optional<Tensor>& up_bias, const std::optional<Tensor>& down_bias,
                     const std::optional<Tensor>& norm_weight,
                     const std::optional<double>& norm_epsilon) {
    return kFunction({activation, threshold, hot, up_activation, gate_bias, up_bias, down_bias,
                      norm_weight, norm_epsilon},
                     a...);
  }
};

// The form of a call on a CPU, of a layer with so many neurons and columns of down. Keeps what had
// to be widened to f32; other vectors are the tensors' own memory.
class CpuForm {
 public:
  CpuForm(const char* operation, const FormArguments& arguments, DType dtype, std::int64_t neurons,
          std::int64_t columns);
  CpuForm(const CpuForm&) = delete;

  const FfnForm& get() const { return form_; }

 private:
  std::span<const float> vector(const Argument& argument, DType dtype, std::int64_t size);

  FfnForm form_;
  std::vector<std::vector<float>> widened_;
};

// An activation of up, by its name.
Activation up_activation_of(const char* operation, const std::string& name);

}  // namespace twell::torch_ops
