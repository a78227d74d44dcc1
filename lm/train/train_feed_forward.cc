#include "train/train_feed_forward.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "decoder/linear.h"
#include "decoder/operators.h"
#include "decoder/projections.h"
#include "decoder/sparse_operators.h"
#include "torch_ops/form_text.h"
#include "train/training_gate.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call {
  Projections parameters;
  at::Tensor down;  // [H, D], the parameter's weights neuron-major
  std::string form;
  std::int64_t layer = 0;
  FfnTraining* training = nullptr;
  std::int64_t hot = 0;  // of the first neurons, on a GPU
  std::optional<at::Tensor> screen = {};
};

using Forward = LayerOperator<
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>>;
using Added = at::Tensor(const at::Tensor& dy, const at::Tensor& x, const OperatorWeights& weights,
                         at::TensorList kept, const std::optional<at::Tensor>& l1_grad,
                         const OperatorWeights& gradients, c10::string_view form, std::int64_t hot);
// dx, and the gradients of the weights: gate, up, down, the vectors.
constexpr std::size_t kDown = 2, kWeights = 3 + kFormVectors.size();
using Gradients = std::array<at::Tensor, 1 + kWeights>;
using Backward = decltype(std::tuple_cat(Gradients()))(const at::Tensor& dy, const at::Tensor& x,
                                                       const OperatorWeights& weights,
                                                       at::TensorList kept,
                                                       const std::optional<at::Tensor>& l1_grad,
                                                       c10::string_view form, std::int64_t hot);

// torch.ops.twell.ffn_train. The list is for autograd: the parameters that are there, in the order
// of the operator's weights.
class SparseFfnFunction : public torch::autograd::Function<SparseFfnFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            at::TensorList /*parameters*/, const Call& call) {
    static const auto op = find_operator<Forward>("twell::ffn_train");
    const variable_list weights = call.parameters.with_down(call.down);
    const auto [y, l1, row_nnz, neuron_nnz, offsets, neurons, values] =
        op.call(x, operator_weights(weights), call.screen, call.form, call.hot);
    if (call.training->recorder != nullptr) {
      call.training->pending.push_back({call.layer, row_nnz, neuron_nnz, l1});
    }
    // The parameter too: so that a change before backward is an error, as that of the others is.
    variable_list saved = {call.parameters.down, x, offsets, neurons, values};
    saved.insert(saved.end(), weights.begin(), weights.end());
    context->save_for_backward(std::move(saved));
    context->saved_data["form"] = call.form;
    context->saved_data["hot"] = call.hot;
    context->saved_data["l1_grad"] = call.training->l1_grad;
    context->saved_data["training"] = reinterpret_cast<std::int64_t>(call.training);
    context->saved_data["layer"] = call.layer;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[1];
    const at::TensorList kept = at::TensorList(saved).slice(2, 3);
    const at::TensorList tensors = at::TensorList(saved).slice(5);
    const OperatorWeights weights = operator_weights(tensors);
    const std::string& form = context->saved_data["form"].toStringRef();
    const std::int64_t hot = context->saved_data["hot"].toInt();
    const at::Tensor l1_grad = at::scalar_tensor(context->saved_data["l1_grad"].toDouble(),
                                                 at::TensorOptions(at::kFloat).device(x.device()));
    const auto* training =
        reinterpret_cast<const FfnTraining*>(context->saved_data["training"].toInt());
    Gradients gradients;
    if (training->sums) {
      static const auto add = find_operator<Added>("twell::ffn_train_backward_add");
      const Projections sums(training->sums(context->saved_data["layer"].toInt()));
      gradients[0] = add.call(grads[0], x, weights, kept, l1_grad,
                              operator_weights(sums.with_down(sums.down.t())), form, hot);
    } else {
      static const auto op = find_operator<Backward>("twell::ffn_train_backward");
      gradients = std::apply([](auto&&... each) { return Gradients{std::move(each)...}; },
                             op.call(grads[0], x, weights, kept, l1_grad, form, hot));
      gradients[1 + kDown] = gradients[1 + kDown].t();
    }
    variable_list out = {gradients[0]};
    for (std::size_t i = 0; i < kWeights; ++i) {
      if (tensors[i].defined()) out.push_back(gradients[1 + i]);
    }
    out.emplace_back();  // of the call
    return out;
  }
};

// Identity whose backward adds the gradient of the L1 term.
class AddL1Gradient : public torch::autograd::Function<AddL1Gradient> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& h, double l1_grad) {
    context->save_for_backward({h});
    context->saved_data["l1_grad"] = l1_grad;
    return h.view_as(h);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const double l1_grad = context->saved_data["l1_grad"].toDouble();
    if (l1_grad == 0.0) return {grads[0], at::Tensor()};
    return {grads[0].add(context->get_saved_variables()[0].sign(), l1_grad), at::Tensor()};
  }
};

// Identity that starts or ends the time of a layer, in forward where it stands and in backward
// where its gradient passes. On a CPU, where one thread runs the nodes of a graph one after the
// other.
class TimeMark : public torch::autograd::Function<TimeMark> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double* seconds,
                            bool begins) {
    context->saved_data["seconds"] = reinterpret_cast<std::int64_t>(seconds);
    context->saved_data["begins"] = begins;
    mark(seconds, begins);
    return x.view_as(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    auto* seconds = reinterpret_cast<double*>(context->saved_data["seconds"].toInt());
    mark(seconds, !context->saved_data["begins"].toBool());
    return {grads[0], at::Tensor(), at::Tensor()};
  }

 private:
  static void mark(double* seconds, bool begins) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    *seconds += (begins ? -1 : 1) * std::chrono::duration<double>(now).count();
  }
};

class TrainingFeedForward : public FeedForward {
 public:
  TrainingFeedForward(FfnParameters parameters, ActivationChoice activation,
                      std::shared_ptr<FfnTraining> training)
      : parameters_(std::move(parameters)),
        activation_(activation),
        training_(std::move(training)),
        sparse_(has_sparse_path(parameters_, activation)) {}

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    if (observer != nullptr && observer->wants_hidden()) {
      throw Error(ErrorKind::unsupported, "training feed-forward layer",
                  "does not hand out hidden states; observe the model before training begins");
    }
    double* const seconds = training_->seconds;
    if (seconds == nullptr) return compute(x, layer);
    return TimeMark::apply(compute(TimeMark::apply(x, seconds, true), layer), seconds, false);
  }
  FfnPath path() const override {
    return sparse_ && training_->sparse ? FfnPath::sparse : FfnPath::dense;
  }
  std::string describe(std::int64_t /*tokens*/) const override {
    return std::string("training, ") + io::name_of(activation_.kind) +
           (path() == FfnPath::sparse ? ", what fires" : ", dense GEMMs");
  }

 private:
  at::Tensor compute(const at::Tensor& x, std::int64_t layer) {
    return sparse_ && training_->takes_sparse(layer) ? sparse(x, layer) : dense(x, layer);
  }

  at::Tensor sparse(const at::Tensor& x, std::int64_t layer) {
    const Projections p(parameters_);
    const at::Tensor rows = x.contiguous();
    const at::Tensor down = p.down.detach().t().contiguous();
    Call call{p, down, form(), layer, training_.get()};
    if (training_->places != nullptr) {
      call.hot = training_->places->choice(layer).hot;
    } else if (screened(rows.detach(), p.with_down(down), layer, call.form)) {
      call.screen = gate_.screen(rows.detach(), p.first.detach());
    }
    variable_list parameters = p.with_down(p.down);
    std::erase_if(parameters, [](const at::Tensor& parameter) { return !parameter.defined(); });
    return SparseFfnFunction::apply(rows, at::TensorList(parameters), call);
  }

  // As the operators take it.
  std::string form() const {
    FfnForm form = sparse_activation(activation_);
    form.up = activation_.up;
    if (activation_.norm_eps) form.norm_epsilon = static_cast<float>(*activation_.norm_eps);
    return torch_ops::text_of(form);
  }

  // Whether the gate goes through a screen, which is decided now and then.
  bool screened(const at::Tensor& x, at::TensorList weights, std::int64_t layer,
                const std::string& form) {
    bool& screened = training_->screened(layer);
    if (training_->decides && decided_ != training_->step) {
      decided_ = training_->step;
      const at::NoGradGuard no_grad;
      screened = gate_.decide(x, weights, form);
    }
    return screened;
  }

  at::Tensor dense(const at::Tensor& x, std::int64_t layer) const {
    const FfnParameters& p = parameters_;
    const at::Tensor v =
        p.gated() ? linear_of(x, p.gate, p.gate_bias) : linear_of(x, p.up, p.up_bias);
    const at::Tensor g = activate(v, activation_);
    const at::Tensor h =
        p.gated() ? g * activate_up(linear_of(x, p.up, p.up_bias), activation_) : g;
    record_dense(g, h, layer);
    const at::Tensor penalised = AddL1Gradient::apply(h, training_->l1_grad);
    return linear_of(input_of_down(penalised, p, activation_), p.down, p.down_bias);
  }

  void record_dense(const at::Tensor& gate, const at::Tensor& h, std::int64_t layer) const {
    if (training_->recorder == nullptr) return;
    const torch::NoGradGuard no_grad;
    const auto fired = gate.ne(0);
    training_->pending.push_back(
        {layer, fired.sum(1), fired.sum(0), at::linalg_vector_norm(h, 1, {}, false, at::kFloat)});
  }

  FfnParameters parameters_;
  ActivationChoice activation_;
  std::shared_ptr<FfnTraining> training_;
  bool sparse_;  // whether the layer has a sparse path
  TrainingGate gate_;
  std::int64_t decided_ = -1;  // the step in which its form was decided
};

}  // namespace

void FfnTraining::record_pending() {
  for (const Fired& call : std::exchange(pending, {})) {
    FfnCounts counts = counts_of(call.row_nnz, call.neuron_nnz);
    counts.l1 = call.l1.item<double>();
    if (places != nullptr) {
      counts.neuron_nnz = places->by_model(call.layer, counts.neuron_nnz);
      if (decides) places->saw(call.layer, counts.rows(), counts.neuron_nnz);
    }
    recorder->record(call.layer, step, counts);
  }
}

bool has_sparse_path(const FfnParameters& parameters, const ActivationChoice& activation) {
  return io::yields_zeros(activation.kind) &&
         (parameters.up.is_cpu() || is_plain(parameters, activation));
}

void lay_out_neuron_major(const at::Tensor& down) {
  const torch::NoGradGuard no_grad;
  at::Tensor parameter = down;
  parameter.set_data(parameter.detach().t().contiguous().t());
}

std::unique_ptr<FeedForward> make_training_feed_forward(const FfnParameters& parameters,
                                                        const ActivationChoice& activation,
                                                        std::shared_ptr<FfnTraining> training) {
  return std::make_unique<TrainingFeedForward>(parameters, activation, std::move(training));
}

}  // namespace twell::lm
