#include "decoder/norm.h"

#include <torch/types.h>

#include <optional>

#include "decoder/rms_norm.h"

namespace twell::lm {
namespace {

using io::NormSpec;

// Any norm, in fp32. Those of whole families of models have one pass each, below.
at::Tensor wide_norm(const at::Tensor& x, const Norm& norm) {
  const auto wide = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(at::kFloat) : tensor;
  };
  at::Tensor weight = wide(norm.weight.tensor);
  const at::Tensor bias = wide(norm.bias.tensor);
  if (norm.spec.plus_one) weight = weight + 1.0;
  const std::vector<std::int64_t> width{x.size(-1)};
  if (norm.spec.kind == NormSpec::Kind::layer) {
    return at::layer_norm(wide(x), width, if_there(weight), if_there(bias), norm.spec.eps)
        .to(x.scalar_type());
  }
  at::Tensor y = at::rms_norm(wide(x), width, if_there(weight), norm.spec.eps);
  if (bias.defined()) y = y + bias;
  return y.to(x.scalar_type());
}

}  // namespace

at::Tensor Norm::operator()(const at::Tensor& x) const {
  switch (spec.kind) {
    case NormSpec::Kind::none:
      return x;
    case NormSpec::Kind::rms:
      if (!spec.weight || spec.plus_one || spec.bias) return wide_norm(x, *this);
      return rms_norm(x, weight.tensor, spec.eps);
    case NormSpec::Kind::layer:
      if (spec.plus_one) return wide_norm(x, *this);
      return at::layer_norm(x, {x.size(-1)}, if_there(weight.tensor), if_there(bias.tensor),
                            spec.eps);
  }
  return x;
}

}  // namespace twell::lm
