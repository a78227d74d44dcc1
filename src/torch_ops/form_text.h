// The scalars of a layer's form (twell/ffn_form.h) as text, which is how operators take them:
// "relu", "fat_relu threshold=0.01", "relu_squared up=relu norm=1e-05". Read by form_arguments.h;
// Form.text in python/twell/form.py writes the same.
#pragma once

#include <array>
#include <charconv>
#include <string>

#include "twell/ffn_form.h"

namespace twell::torch_ops {

// The form's vectors are not looked at. Numbers have all their digits.
inline std::string text_of(const FfnForm& form) {
  const auto number = [](double value) {
    std::array<char, 32> digits = {};
    const auto written = std::to_chars(digits.begin(), digits.end(), value);
    return std::string(digits.begin(), written.ptr);
  };
  std::string text = name_of(form.gate.kind);
  if (form.gate.threshold != 0) text += " threshold=" + number(form.gate.threshold);
  if (form.up != Activation::identity) text += std::string(" up=") + name_of(form.up);
  if (form.norm_epsilon) text += " norm=" + number(*form.norm_epsilon);
  return text;
}

}  // namespace twell::torch_ops
