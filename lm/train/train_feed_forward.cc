#include "train/train_feed_forward.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <string>
#include <tuple>
#include <utility>

#include "decoder/linear.h"
#include "decoder/operators.h"
#include "decoder/sparse_operators.h"
#include "train/layer_form.h"
#include "train/training_gate.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Call {
  LayerForm form;
  std::int64_t layer = 0;
  FfnTraining* training = nullptr;
  OptionalTensor screen;
};

using Forward = Formed<
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>,
    const at::Tensor&, const at::Tensor&, const OptionalTensor&, const at::Tensor&,
    const OptionalTensor&>;
using Added = Formed<at::Tensor, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                     const OptionalTensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                     const at::Tensor&, const OptionalTensor&, const at::Tensor&,
                     const OptionalTensor&, const at::Tensor&, const OptionalTensor&,
                     const OptionalTensor&, const OptionalTensor&, const OptionalTensor&>;
using Backward = Formed<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                                   at::Tensor, at::Tensor, at::Tensor>,
                        const at::Tensor&, const at::Tensor&, const at::Tensor&,
                        const OptionalTensor&, const at::Tensor&, const at::Tensor&,
                        const at::Tensor&, const at::Tensor&, const OptionalTensor&>;

// torch.ops.twell.ffn_train. wd [D, H] is the parameter, `down` [H, D] the same weights
// neuron-major; the others as in Projections.
class SparseFfnFunction : public torch::autograd::Function<SparseFfnFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& first,
                            const OptionalTensor& up, const at::Tensor& wd, const at::Tensor& down,
                            const OptionalTensor& first_bias, const OptionalTensor& up_bias,
                            const OptionalTensor& down_bias, const OptionalTensor& norm_weight,
                            const Call& call) {
    static const auto op = find_operator<Forward>("twell::ffn_train");
    const LayerForm& form = call.form;
    const auto [y, l1, row_nnz, neuron_nnz, offsets, neurons, values] =
        form.call(op, x, first, up, down, call.screen);
    if (call.training->recorder != nullptr) {
      call.training->pending.push_back({call.layer, row_nnz, neuron_nnz, l1});
    }
    // wd: so that a change before backward is an error, as that of the others is.
    const at::Tensor none;
    context->save_for_backward({x, first, up.value_or(none), down, offsets, neurons, values, wd,
                                first_bias.value_or(none), up_bias.value_or(none),
                                down_bias.value_or(none), norm_weight.value_or(none)});
    context->saved_data["activation"] = static_cast<std::int64_t>(form.gate.kind);
    context->saved_data["threshold"] = static_cast<double>(form.gate.threshold);
    context->saved_data["up"] = static_cast<std::int64_t>(form.up);
    if (form.norm_eps) context->saved_data["norm_eps"] = *form.norm_eps;
    context->saved_data["l1_grad"] = call.training->l1_grad;
    context->saved_data["training"] = reinterpret_cast<std::int64_t>(call.training);
    context->saved_data["layer"] = call.layer;
    context->saved_data["hot"] = form.hot;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &first = saved[1], &down = saved[3], &offsets = saved[4],
                     &neurons = saved[5], &values = saved[6];
    const OptionalTensor up = if_there(saved[2]);
    const auto eps = context->saved_data.find("norm_eps");
    const LayerForm form{
        {static_cast<Activation>(context->saved_data["activation"].toInt()),
         static_cast<float>(context->saved_data["threshold"].toDouble())},
        static_cast<Activation>(context->saved_data["up"].toInt()),
        eps == context->saved_data.end() ? std::nullopt : std::optional(eps->second.toDouble()),
        context->saved_data["hot"].toInt(),
        if_there(saved[8]),
        if_there(saved[9]),
        if_there(saved[10]),
        if_there(saved[11])};
    const at::Tensor l1_grad = at::scalar_tensor(context->saved_data["l1_grad"].toDouble(),
                                                 at::TensorOptions(at::kFloat).device(x.device()));
    const auto* training =
        reinterpret_cast<const FfnTraining*>(context->saved_data["training"].toInt());
    const at::Tensor none;
    if (training->sums) {
      static const auto add = find_operator<Added>("twell::ffn_train_backward_add");
      const Projections sums(training->sums(context->saved_data["layer"].toInt()));
      const at::Tensor dx =
          form.call(add, grads[0], x, first, up, down, offsets, neurons, values, l1_grad,
                    sums.first, if_there(sums.up), sums.down.t(), if_there(sums.first_bias),
                    if_there(sums.up_bias), if_there(sums.down_bias), if_there(sums.norm_weight));
      return {dx, none, none, none, none, none, none, none, none, none};
    }
    static const auto op = find_operator<Backward>("twell::ffn_train_backward");
    const auto [dx, dfirst, dup, ddown, dfirst_bias, dup_bias, ddown_bias, dnorm_weight] =
        form.call(op, grads[0], x, first, up, down, offsets, neurons, values, l1_grad);
    return {dx,
            dfirst,
            up ? dup : none,
            ddown.t(),
            none,
            form.gate_bias ? dfirst_bias : none,
            form.up_bias ? dup_bias : none,
            form.down_bias ? ddown_bias : none,
            form.norm_weight ? dnorm_weight : none,
            none};
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
    Call call{form_of(p), layer, training_.get(), {}};
    if (training_->places != nullptr) {
      call.form.hot = training_->places->choice(layer).hot;
    } else if (screened(rows.detach(), p, down, layer, call.form)) {
      call.screen = gate_.screen(rows.detach(), p.first.detach());
    }
    return SparseFfnFunction::apply(rows, p.first, if_there(p.up), p.down, down,
                                    if_there(p.first_bias), if_there(p.up_bias),
                                    if_there(p.down_bias), if_there(p.norm_weight), call);
  }

  LayerForm form_of(const Projections& p) const {
    return {sparse_activation(activation_), activation_.up,
            activation_.norm_eps,           0,
            if_there(p.first_bias),         if_there(p.up_bias),
            if_there(p.down_bias),          if_there(p.norm_weight)};
  }

  // Whether the gate goes through a screen, which is decided now and then.
  bool screened(const at::Tensor& x, const Projections& p, const at::Tensor& down,
                std::int64_t layer, const LayerForm& layer_form) {
    bool& form = training_->screened(layer);
    if (training_->decides && decided_ != training_->step) {
      decided_ = training_->step;
      const at::NoGradGuard no_grad;
      form = gate_.decide(x, p.first, if_there(p.up), down, layer_form);
    }
    return form;
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
