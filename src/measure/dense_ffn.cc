#include "measure/dense_ffn.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

#include "twell/status.h"

namespace twell::measure {
namespace {

bool is_packed(DenseForm form) {
  return form == DenseForm::packed || form == DenseForm::packed_product;
}

// oneDNN's operators have no C++ function in ATen; they are called by name, as torch.compile does.
at::Tensor call(const char* name, std::vector<c10::IValue> arguments) {
  const auto operation = c10::Dispatcher::singleton().findSchema({name, ""});
  if (!operation) throw Error(ErrorKind::unsupported, name, "not in this PyTorch");
  operation->callBoxed(arguments);
  return arguments.front().toTensor();
}

at::Tensor reorder(const at::Tensor& weight, std::int64_t tokens) {
  return call("mkldnn::_reorder_linear_weight", {weight, c10::IValue(tokens)});
}

at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& weight, const char* after) {
  return call("mkldnn::_linear_pointwise", {x, weight, c10::IValue(), std::string(after),
                                            c10::List<std::optional<at::Scalar>>(), std::string()});
}

at::Tensor packed_linear_times(const at::Tensor& x, const at::Tensor& factor,
                               const at::Tensor& weight) {
  const auto operation =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", "binary"});
  if (!operation) throw Error(ErrorKind::unsupported, "_linear_pointwise", "not in this PyTorch");
  std::vector<c10::IValue> arguments{x, factor, weight, c10::IValue(), std::string("mul")};
  operation->callBoxed(arguments);
  return arguments.front().toTensor();
}

}  // namespace

const char* name_of(DenseForm form) {
  switch (form) {
    case DenseForm::linear:
      return "at::linear";
    case DenseForm::joined:
      return "at::linear, gate and up joined";
    case DenseForm::packed:
      return "oneDNN prepacked";
    case DenseForm::packed_product:
      return "oneDNN prepacked, product fused";
  }
  return "?";
}

DenseFfn::DenseFfn(DenseForm form, const SyntheticLayer& layer,
                   const lm::ActivationChoice& activation, std::int64_t tokens)
    : form_(form), activation_(activation), gate_(layer.gate), up_(layer.up), down_(layer.down) {
  if (!up_.defined() && (form == DenseForm::joined || form == DenseForm::packed_product)) {
    throw Error(ErrorKind::unsupported, name_of(form), "needs a gated layer");
  }
  if (form == DenseForm::joined) {
    gate_ = at::cat({gate_, up_});
    up_.reset();
  } else if (is_packed(form)) {
    gate_ = reorder(gate_, tokens);
    if (up_.defined()) up_ = reorder(up_, tokens);
    down_ = reorder(down_, tokens);
  }
}

at::Tensor DenseFfn::operator()(const at::Tensor& x) const {
  if (form_ == DenseForm::linear) {
    at::Tensor h = at::linear(x, gate_);
    lm::activate_(h, activation_);
    if (up_.defined()) h.mul_(at::linear(x, up_));
    return at::linear(h, down_);
  }
  if (form_ == DenseForm::joined) {
    const at::Tensor both = at::linear(x, gate_);  // [M, 2H]
    const std::int64_t h = both.size(1) / 2;
    at::Tensor g = both.narrow(1, 0, h);
    lm::activate_(g, activation_);
    // A new tensor: the down GEMM reads a contiguous one faster.
    return at::linear(at::mul(g, both.narrow(1, h, h)), down_);
  }
  const bool relu = activation_.kind == io::HiddenAct::relu;  // which oneDNN fuses
  at::Tensor h = packed_linear(x, gate_, relu ? "relu" : "none");
  if (!relu) lm::activate_(h, activation_);
  if (form_ == DenseForm::packed_product) {
    h = packed_linear_times(x, h, up_);
  } else if (up_.defined()) {
    h.mul_(packed_linear(x, up_, "none"));
  }
  return packed_linear(h, down_, "none");
}

std::vector<DenseForm> available_forms(const SyntheticLayer& layer,
                                       const lm::ActivationChoice& activation,
                                       std::int64_t tokens) {
  std::vector<DenseForm> forms;
  const at::Tensor x = at::zeros({tokens, layer.gate.size(1)}, layer.gate.options());
  for (const DenseForm form :
       {DenseForm::linear, DenseForm::joined, DenseForm::packed, DenseForm::packed_product}) {
    try {
      DenseFfn(form, layer, activation, tokens)(x);
      forms.push_back(form);
    } catch (const std::exception&) {
      // PyTorch refuses in many ways (type, processor, build); plain weights always remain.
      if (form == DenseForm::linear) throw;
    }
  }
  return forms;
}

}  // namespace twell::measure
