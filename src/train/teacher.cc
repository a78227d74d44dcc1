#include "train/teacher.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <utility>

#include "twell/status.h"

namespace twell::lm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void expect_same(const char* key, std::int64_t model, std::int64_t teacher) {
  if (model == teacher) return;
  throw Error(ErrorKind::invalid_argument, "teacher",
              fmt::format("{}: expected {} as in the model, got {}", key, model, teacher));
}

// Identity whose backward adds a gradient.
class AddGradient : public torch::autograd::Function<AddGradient> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& gradient) {
    context->save_for_backward({gradient});
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    return {grads[0] + context->get_saved_variables()[0], at::Tensor()};
  }
};

}  // namespace

Teacher::Teacher(std::unique_ptr<Model> model, const Model& student, const Recipe& recipe)
    : model_(std::move(model)),
      hidden_weight_(recipe.hidden_weight),
      share_(1.0 / static_cast<double>(student.layers() * recipe.tokens_per_step())) {
  const io::ModelConfig &own = model_->config(), &other = student.config();
  expect_same("vocab_size", other.vocab_size, own.vocab_size);
  if (hidden_weight_ > 0.0) {
    expect_same("num_hidden_layers", student.layers(), model_->layers());
    expect_same("hidden_size", other.hidden_size, own.hidden_size);
  }
  if (recipe.context > own.max_position_embeddings) {
    throw Error(ErrorKind::invalid_argument, "teacher",
                fmt::format("context: it has {} positions, got {}", own.max_position_embeddings,
                            recipe.context));
  }
  error_ = at::zeros({}, at::TensorOptions(at::kDouble).device(model_->device()));
}

void Teacher::read(const at::Tensor& tokens) {
  const at::NoGradGuard no_grad;
  states_.clear();
  at::Tensor x = model_->embed(tokens);
  for (std::int64_t layer = 0; layer < model_->layers(); ++layer) {
    x = model_->block(layer, x);
    if (hidden_weight_ <= 0.0 || layer + 1 == model_->layers()) continue;
    states_.push_back(x.clone());  // without gradients the next block may add to it in place
  }
  last_ = model_->final_norm(x).flatten(0, 1);
  states_.push_back(last_);
}

at::Tensor Teacher::pull(std::int64_t state, const at::Tensor& x) {
  if (hidden_weight_ <= 0.0 || !at::GradMode::is_enabled()) return x;
  at::Tensor gradient;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor wanted = states_.at(static_cast<std::size_t>(state)).view_as(x).to(at::kFloat);
    const at::Tensor apart = x.detach().to(at::kFloat) - wanted;
    const at::Tensor length =
        wanted.square().sum(-1, true).clamp_min(std::numeric_limits<float>::min());
    error_.add_((apart.square().sum(-1, true) / length).sum(at::kDouble), share_);
    gradient = (apart * (2.0 * hidden_weight_ * share_) / length).to(x.scalar_type());
  }
  return AddGradient::apply(x, gradient);
}

double Teacher::take_hidden_error() {
  const double error = error_.item<double>();
  error_.zero_();
  return error;
}

at::Tensor Teacher::logits(std::int64_t begin, std::int64_t count) {
  const at::NoGradGuard no_grad;
  return model_->head(last_.narrow(0, begin, count));
}

at::Tensor divergence(const at::Tensor& logits, const at::Tensor& wanted, double temperature,
                      const at::Tensor& sum) {
  const at::NoGradGuard no_grad;
  at::Tensor p = at::log_softmax(logits / temperature, 1);
  const at::Tensor log_q = at::log_softmax(wanted / temperature, 1);
  const at::Tensor q = log_q.exp();
  sum.add_((log_q - p).mul_(q).sum(at::kDouble), temperature * temperature);
  return p.exp_().sub_(q).mul_(temperature);
}

}  // namespace twell::lm
