// A layer's weights and form (twell/ffn_form.h) as the operators take them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "torch_ops/arguments.h"
#include "twell/ffn_form.h"

namespace twell::torch_ops {

using OptionalTensors = std::vector<std::optional<Tensor>>;

// What an operator's list `weights` has, in this order. Trailing ones may be left out. Without a
// gate there is no up, and up is in the gate's place. Vectors (kFormVectors) are of the layer's
// dtype or f32.
inline constexpr std::size_t kMatrices = 3;
inline constexpr std::size_t kWeights = kMatrices + kFormVectors.size();
const char* weight_name(std::size_t at);
// That of its gradient, in results and in the list `gradients`: "dgate".
const char* gradient_name(std::size_t at);
// dx and all of these, as an operator returns them, and its schema names them.
using GradientTensors = decltype(std::tuple_cat(std::array<Tensor, 1 + kWeights>()));
std::string gradients_schema();

// None beyond the end.
const std::optional<Tensor>& entry(std::span<const std::optional<Tensor>> list, std::size_t at);
// An entry that has to be there. `name` is the argument's, for the error.
const Tensor& required(const char* operation, const char* name, const OptionalTensors& list,
                       std::size_t at);

// Of what ffn_train kept: offsets, neurons and values.
void require_kept(const char* operation, std::span<const Tensor> kept);

// What text_of() writes (form_text.h): a form without its vectors.
FfnForm form_of(const char* operation, const std::string& text);

// One layer of a call. Refers to `weights`.
struct LayerArguments {
  LayerArguments(const char* operation, const OptionalTensors& weights, const std::string& form,
                 std::int64_t hot);
  LayerArguments(const LayerArguments&) = delete;

  const char* operation;
  const OptionalTensors& weights;
  FfnForm form;  // without its vectors
  std::int64_t hot;
  const Tensor& gate;
  const std::optional<Tensor>& up;
  const Tensor& down;

  std::span<const std::optional<Tensor>> vectors() const {
    return std::span(weights).subspan(std::min(kMatrices, weights.size()));
  }
};

// The form of a call on a CPU, of a layer with so many neurons and columns of down. `vectors` are
// those of kFormVectors. Keeps what had to be widened to f32; others are the tensors' own memory.
class CpuForm {
 public:
  CpuForm(const char* operation, const FfnForm& form,
          std::span<const std::optional<Tensor>> vectors, DType dtype, std::int64_t neurons,
          std::int64_t columns);
  CpuForm(const LayerArguments& layer, DType dtype, std::int64_t neurons, std::int64_t columns)
      : CpuForm(layer.operation, layer.form, layer.vectors(), dtype, neurons, columns) {}
  CpuForm(const CpuForm&) = delete;

  const FfnForm& get() const { return form_; }

 private:
  std::span<const float> vector(const Argument& argument, DType dtype, std::int64_t size);

  FfnForm form_;
  std::vector<std::vector<float>> widened_;
};

}  // namespace twell::torch_ops
