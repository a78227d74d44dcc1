#include "measure/dense_ffn.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/types.h>

#include "decoder/linear.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

bool is_packed(DenseVariant variant) {
  return variant == DenseVariant::packed || variant == DenseVariant::packed_product;
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

at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const char* after) {
  return call("mkldnn::_linear_pointwise", {x, weight, bias, std::string(after),
                                            c10::List<std::optional<at::Scalar>>(), std::string()});
}

at::Tensor packed_linear_times(const at::Tensor& x, const at::Tensor& factor,
                               const at::Tensor& weight, const at::Tensor& bias) {
  const auto operation =
      c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", "binary"});
  if (!operation) throw Error(ErrorKind::unsupported, "_linear_pointwise", "not in this PyTorch");
  std::vector<c10::IValue> arguments{x, factor, weight, bias, std::string("mul")};
  operation->callBoxed(arguments);
  return arguments.front().toTensor();
}

}  // namespace

const char* name_of(DenseVariant variant) {
  switch (variant) {
    case DenseVariant::linear:
      return "at::linear";
    case DenseVariant::joined:
      return "at::linear, gate and up joined";
    case DenseVariant::packed:
      return "oneDNN prepacked";
    case DenseVariant::packed_product:
      return "oneDNN prepacked, product fused";
  }
  return "?";
}

DenseFfn::DenseFfn(DenseVariant variant, const SyntheticLayer& layer,
                   const ActivationChoice& activation, std::int64_t tokens)
    : variant_(variant),
      activation_(activation),
      gate_(layer.gate),
      up_(layer.up),
      down_(layer.down),
      vectors_(layer) {
  if (!up_.defined() &&
      (variant == DenseVariant::joined || variant == DenseVariant::packed_product)) {
    throw Error(ErrorKind::unsupported, name_of(variant), "needs a gated layer");
  }
  if (variant == DenseVariant::joined) {
    gate_ = at::cat({gate_, up_});
    if (vectors_.gate_bias.defined())
      vectors_.gate_bias = at::cat({vectors_.gate_bias, vectors_.up_bias});
    up_.reset();
  } else if (is_packed(variant)) {
    gate_ = reorder(gate_, tokens);
    if (up_.defined()) up_ = reorder(up_, tokens);
    down_ = reorder(down_, tokens);
  }
}

at::Tensor DenseFfn::operator()(const at::Tensor& x) const {
  if (variant_ == DenseVariant::linear) {
    at::Tensor h = linear_of(x, gate_, vectors_.gate_bias);
    activate_(h, activation_);
    if (up_.defined()) h.mul_(linear_of(x, up_, vectors_.up_bias));
    return linear_of(h, down_, vectors_.down_bias);
  }
  if (variant_ == DenseVariant::joined) {
    const at::Tensor both = linear_of(x, gate_, vectors_.gate_bias);  // [M, 2H]
    const std::int64_t h = both.size(1) / 2;
    at::Tensor g = both.narrow(1, 0, h);
    activate_(g, activation_);
    // A new tensor: the down GEMM reads a contiguous one faster.
    return linear_of(at::mul(g, both.narrow(1, h, h)), down_, vectors_.down_bias);
  }
  const bool relu = activation_.kind == io::HiddenAct::relu;  // which oneDNN fuses
  at::Tensor h = packed_linear(x, gate_, vectors_.gate_bias, relu ? "relu" : "none");
  if (!relu) activate_(h, activation_);
  if (variant_ == DenseVariant::packed_product) {
    h = packed_linear_times(x, h, up_, vectors_.up_bias);
  } else if (up_.defined()) {
    h.mul_(packed_linear(x, up_, vectors_.up_bias, "none"));
  }
  return packed_linear(h, down_, vectors_.down_bias, "none");
}

std::vector<DenseVariant> available_variants(const SyntheticLayer& layer,
                                             const ActivationChoice& activation,
                                             std::int64_t tokens) {
  std::vector<DenseVariant> variants;
  const at::Tensor x = at::zeros({tokens, layer.gate.size(1)}, layer.gate.options());
  for (const DenseVariant variant : {DenseVariant::linear, DenseVariant::joined,
                                     DenseVariant::packed, DenseVariant::packed_product}) {
    try {
      DenseFfn(variant, layer, activation, tokens)(x);
      variants.push_back(variant);
    } catch (const std::exception&) {
      // PyTorch refuses in many ways (type, processor, build); plain weights always remain.
      if (variant == DenseVariant::linear) throw;
    }
  }
  return variants;
}

}  // namespace twell::lm
