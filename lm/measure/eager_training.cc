#include "measure/eager_training.h"

#include <ATen/autocast_mode.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>

namespace twell::lm {
namespace {

// Operations that autocast knows multiply in bf16, as long as this lives.
class Autocast {
 public:
  Autocast(at::DeviceType device, bool enabled) : device_(device), enabled_(enabled) {
    if (!enabled_) return;
    at::autocast::set_autocast_enabled(device_, true);
    at::autocast::set_autocast_dtype(device_, at::kBFloat16);
  }
  ~Autocast() {
    if (!enabled_) return;
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool enabled_;
};

// As it lies in memory: fused kernels want one layout of all that belongs together.
at::Tensor in_order(const at::Tensor& tensor, const at::Tensor& like) {
  return like.is_contiguous() ? tensor : tensor.t();
}

}  // namespace

EagerTraining::EagerTraining(Trainer& trainer, const TokenStream& tokens)
    : recipe_(trainer.recipe()) {
  NamedTensors named;
  for (OptimizedParameter& parameter : trainer.optimized()) {
    of_.push_back(&parameter);
    weights_.push_back(parameter.master.detach().requires_grad_());
    named.emplace_back(parameter.name, weights_.back());
    if (parameter.compute.scalar_type() != at::kFloat) {
      foreign_bytes_ += static_cast<std::int64_t>(parameter.compute.nbytes());
    }
  }
  model_.emplace(trainer.config(), named);
  const std::int64_t count = recipe_.micro_batch * recipe_.accumulation;
  windows_ = at::empty({count, recipe_.context + 1}, at::kLong);
  auto* ids = windows_.mutable_data_ptr<std::int64_t>();
  const auto length = static_cast<std::size_t>(recipe_.context + 1);
  for (std::int64_t w = 0; w < count; ++w) {
    tokens.read(w * recipe_.context, {ids + static_cast<std::size_t>(w) * length, length});
  }
}

// In nats, mean over the tokens.
at::Tensor EagerTraining::cross_entropy(const at::Tensor& hidden, const at::Tensor& targets) const {
  const at::Tensor logits = model_->head(model_->final_norm(hidden)).to(at::kFloat);
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

void EagerTraining::pass(const at::Tensor& windows, double share) {
  const at::Tensor tokens = windows.narrow(1, 0, recipe_.context).to(model_->device());
  const at::Tensor targets =
      windows.narrow(1, 1, recipe_.context).contiguous().to(model_->device());
  const bool bf16 = recipe_.compute == ComputeType::bf16;
  const EagerModel::Angles angles = model_->angles(0, recipe_.context, at::kFloat);
  const auto autocast = [&] { return Autocast(model_->device().type(), bf16); };
  if (!recipe_.recompute) {
    at::Tensor value;
    {
      const auto guard = autocast();
      at::Tensor x = model_->embed(tokens);
      for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
        x = model_->block(layer, x, angles);
      }
      value = cross_entropy(x, targets) * share;
    }
    value.backward();
    loss_ += value.detach();
    return;
  }
  // Block inputs are kept, and blocks run twice (gradient_checkpointing=True).
  std::vector<at::Tensor> inputs;
  at::Tensor x;
  {
    const at::NoGradGuard no_grad;
    const auto guard = autocast();
    x = model_->embed(tokens);
    for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
      inputs.push_back(x);
      x = model_->block(layer, x, angles);
    }
  }
  const at::Tensor last = x.detach().requires_grad_();
  at::Tensor value;
  {
    const auto guard = autocast();
    value = cross_entropy(last, targets) * share;
  }
  value.backward();
  loss_ += value.detach();
  at::Tensor grad = last.grad();
  for (std::int64_t layer = model_->layers() - 1; layer >= 0; --layer) {
    const at::Tensor input = inputs[static_cast<std::size_t>(layer)].detach().requires_grad_();
    inputs.pop_back();
    at::Tensor out;
    {
      const auto guard = autocast();
      out = model_->block(layer, input, angles);
    }
    out.backward(grad);
    grad = input.grad();
  }
  model_->embed(tokens).backward(grad);
}

void EagerTraining::update() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& weight : weights_) gradients.push_back(weight.grad());
  grad_norm_ = at::stack(at::_foreach_norm(gradients, 2)).norm();
  at::_foreach_mul_(gradients, at::clamp_max(recipe_.clip / (grad_norm_ + 1e-6), 1.0));
  for (const bool decayed : {true, false}) {
    std::vector<at::Tensor> p, g, m, v, steps;
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      const OptimizedParameter& of = *of_[i];
      if (of.decayed != decayed) continue;
      p.push_back(in_order(weights_[i].detach(), of.master));
      g.push_back(in_order(gradients[i], of.master).contiguous());
      m.push_back(in_order(of.m, of.master));
      v.push_back(in_order(of.v, of.master));
      steps.push_back(at::ones({}, of.master.options()));
    }
    if (p.empty()) continue;
    at::_fused_adamw_(p, g, m, v, {}, steps, /*lr=*/0.0, recipe_.beta1, recipe_.beta2,
                      decayed ? recipe_.weight_decay : 0.0, recipe_.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  clear_gradients();
}

void EagerTraining::clear_gradients() {
  for (at::Tensor& weight : weights_) weight.mutable_grad().reset();
}

void EagerTraining::step(std::int64_t micro_batch) {
  loss_ = at::zeros({}, weights_.front().options().requires_grad(false));
  const std::int64_t passes = windows_.size(0) / micro_batch;
  for (std::int64_t i = 0; i < passes; ++i) {
    pass(windows_.narrow(0, i * micro_batch, micro_batch), 1.0 / static_cast<double>(passes));
  }
  update();
}

}  // namespace twell::lm
