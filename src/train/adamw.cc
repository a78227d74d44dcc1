#include "train/adamw.h"

#include <ATen/Parallel.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>

#include "twell/status.h"

namespace twell::lm {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements a thread takes at least: 0.5 MB of traffic

struct Step {
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float keep;       // 1 - lr * weight_decay
  float step_size;  // lr / (1 - beta1^t)
  float root;       // 1 / sqrt(1 - beta2^t)
  float eps;
  float grad_scale;
};

template <class Grad>
void update_range(const Step& s, const Grad* grad, float* w, float* m, float* v, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = static_cast<float>(grad[i]) * s.grad_scale;
    const float mi = s.beta1 * m[i] + s.one_minus_beta1 * g;
    const float vi = s.beta2 * v[i] + s.one_minus_beta2 * (g * g);
    m[i] = mi;
    v[i] = vi;
    w[i] = w[i] * s.keep - s.step_size * (mi / (std::sqrt(vi) * s.root + s.eps));
  }
}

template <class Grad>
void update_tensor(const Step& step, const at::Tensor& grad, OptimizedParameter& p) {
  const Grad* g = grad.const_data_ptr<Grad>();
  auto* w = p.master.mutable_data_ptr<float>();
  auto* m = p.m.mutable_data_ptr<float>();
  auto* v = p.v.mutable_data_ptr<float>();
  at::BFloat16* copy = p.compute.scalar_type() == at::kBFloat16
                           ? p.compute.mutable_data_ptr<at::BFloat16>()
                           : nullptr;
  at::parallel_for(0, p.master.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    update_range(step, g + begin, w + begin, m + begin, v + begin, end - begin);
    if (copy == nullptr) return;
    for (std::int64_t i = begin; i < end; ++i) copy[i] = static_cast<at::BFloat16>(w[i]);
  });
}

// The same by PyTorch's operations, on any device.
void update_by_operations(const Step& s, const at::Tensor& grad, OptimizedParameter& p) {
  const at::Tensor g = grad.to(at::kFloat) * s.grad_scale;
  p.m.mul_(s.beta1).add_(g, s.one_minus_beta1);
  p.v.mul_(s.beta2).addcmul_(g, g, s.one_minus_beta2);
  p.master.mul_(s.keep).addcdiv_(p.m, p.v.sqrt().mul_(s.root).add_(s.eps), -s.step_size);
  if (p.compute.scalar_type() == at::kBFloat16) p.compute.copy_(p.master);
}

// What the update reads: the fp32 sum if there is one, else the gradient of the last pass.
const at::Tensor& gradient_of(const OptimizedParameter& p) {
  return p.sum.defined() ? p.sum : p.compute.grad();
}

}  // namespace

bool is_decayed(const std::string& name, const at::Tensor& parameter) {
  return parameter.dim() >= 2 && name != "model.embed_tokens.weight";
}

AdamW::AdamW(const std::vector<Entry>& entries, bool tensor_operations)
    : tensor_operations_(tensor_operations) {
  for (const Entry& entry : entries) {
    OptimizedParameter p;
    p.name = entry.name;
    p.compute = entry.compute;
    p.master = entry.master.detach();
    const auto type = p.compute.scalar_type();
    const bool shares = p.compute.const_data_ptr() == p.master.const_data_ptr();
    if (p.master.scalar_type() != at::kFloat || (type != at::kFloat && type != at::kBFloat16) ||
        shares != (type == at::kFloat) || !p.master.is_contiguous() || !p.compute.is_contiguous() ||
        p.compute.sizes() != p.master.sizes()) {
      throw Error(ErrorKind::invalid_argument, "AdamW",
                  p.name +
                      ": expected a contiguous fp32 master and a bf16 copy of its shape, or an "
                      "fp32 parameter that is its own master");
    }
    if (!p.master.is_cpu()) tensor_operations_ = true;
    p.m = at::zeros_like(p.master);
    p.v = at::zeros_like(p.master);
    p.decayed = is_decayed(p.name, p.master);
    parameters_.push_back(std::move(p));
  }
}

void AdamW::accumulate() {
  for (OptimizedParameter& p : parameters_) {
    at::Tensor& grad = p.compute.mutable_grad();
    if (p.compute.scalar_type() == at::kFloat || !grad.defined()) continue;
    if (p.sum.defined()) {
      p.sum.add_(grad);
    } else {
      p.sum = grad.to(at::kFloat);
    }
    grad.reset();
  }
}

double AdamW::grad_norm() const {
  if (tensor_operations_) {
    // One number is read back, not one a parameter.
    std::vector<at::Tensor> squares;
    for (const OptimizedParameter& p : parameters_) {
      const at::Tensor& grad = gradient_of(p);
      if (!grad.defined()) continue;
      squares.push_back(
          at::linalg_vector_norm(grad, 2, {}, false, at::kFloat).to(at::kDouble).square());
    }
    return squares.empty() ? 0.0 : std::sqrt(at::stack(squares).sum().item<double>());
  }
  double sum = 0.0;
  for (const OptimizedParameter& p : parameters_) {
    const at::Tensor& grad = gradient_of(p);
    if (!grad.defined()) continue;
    const auto norm = at::linalg_vector_norm(grad, 2, {}, false, at::kFloat).item<double>();
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

void AdamW::update(const Recipe& recipe, double lr, double grad_scale, std::int64_t t) {
  const torch::NoGradGuard no_grad;
  const auto count = static_cast<double>(t);
  Step step{};
  step.beta1 = static_cast<float>(recipe.beta1);
  step.beta2 = static_cast<float>(recipe.beta2);
  step.one_minus_beta1 = static_cast<float>(1 - recipe.beta1);
  step.one_minus_beta2 = static_cast<float>(1 - recipe.beta2);
  step.step_size = static_cast<float>(lr / (1 - std::pow(recipe.beta1, count)));
  step.root = static_cast<float>(1 / std::sqrt(1 - std::pow(recipe.beta2, count)));
  step.eps = static_cast<float>(recipe.eps);
  step.grad_scale = static_cast<float>(grad_scale);
  for (OptimizedParameter& p : parameters_) {
    step.keep = static_cast<float>(p.decayed ? 1 - lr * recipe.weight_decay : 1.0);
    const at::Tensor& source = gradient_of(p);
    if (!source.defined()) continue;  // took no part in this step
    if (tensor_operations_) {
      update_by_operations(step, source, p);
      continue;
    }
    const at::Tensor grad = source.contiguous();
    if (grad.scalar_type() == at::kBFloat16) {
      update_tensor<at::BFloat16>(step, grad, p);
    } else {
      update_tensor<float>(step, grad, p);
    }
  }
  clear_gradients();
}

void AdamW::clear_gradients() {
  for (OptimizedParameter& p : parameters_) {
    p.compute.mutable_grad().reset();
    p.sum.reset();
  }
}

OptimizedParameter& AdamW::find(const std::string& name) {
  for (OptimizedParameter& p : parameters_) {
    if (p.name == name) return p;
  }
  throw Error(ErrorKind::invalid_argument, "AdamW", "no parameter is named " + name);
}

}  // namespace twell::lm
