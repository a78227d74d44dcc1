#include "train/train_feed_forward.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "models/sparse_operators.h"
#include "train/ffn_elementwise.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Below this share of active neurons their weights are copied together: the copies cost one pass
// over [H, D] and [N, active], the GEMMs saved eight passes' worth of arithmetic.
constexpr double kCompactBelow = 0.85;

struct Call {
  ActivationSpec activation;
  std::int64_t layer = 0;
  FfnTraining* training = nullptr;
};

// The neurons of one pass, and their weights: all of them, or the active ones in ascending order.
struct ActiveSet {
  at::Tensor index;  // int64 [A]; undefined: all
  at::Tensor gate, up, down;

  ActiveSet(const at::Tensor& wg, const at::Tensor& wu, const at::Tensor& wd, at::Tensor columns)
      : index(std::move(columns)), gate(wg), up(wu), down(wd) {
    if (!index.defined()) return;
    gate = wg.index_select(0, index);
    if (wu.defined()) up = wu.index_select(0, index);
    down = wd.index_select(1, index);
  }
};

// The active neurons, and the first inactive ones up to a multiple of H / 32 (at least 16), which
// contribute zeros: every number of neurons is a shape of its own for oneDNN, which keeps some 250
// kB of generated code for each GEMM and shape.
std::vector<std::int64_t> active_columns(const FfnCounts& counts) {
  const auto full = static_cast<std::int64_t>(counts.neuron_nnz.size());
  const std::int64_t unit = std::max<std::int64_t>(16, (full + 31) / 32);
  const std::int64_t active = counts.active_neurons();
  std::int64_t idle = std::min(full, (active + unit - 1) / unit * unit) - active;
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(active + idle));
  for (std::int64_t i = 0; i < full; ++i) {
    if (counts.neuron_nnz[static_cast<std::size_t>(i)] > 0 || idle-- > 0) out.push_back(i);
  }
  return out;
}

// A gradient of the active neurons among zeros: `full` elements in dimension `dim`.
at::Tensor spread(at::Tensor grad, const at::Tensor& index, std::int64_t dim, std::int64_t full) {
  if (!index.defined()) return grad;
  std::vector<std::int64_t> shape = grad.sizes().vec();
  shape[static_cast<std::size_t>(dim)] = full;
  return at::zeros(shape, grad.options()).index_copy_(dim, index, grad);
}

// First projection is the gate, or up in a layer without gate; `up` is absent then.
class SparseFfnFunction : public torch::autograd::Function<SparseFfnFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& wg,
                            const std::optional<at::Tensor>& up, const at::Tensor& wd,
                            const Call& call) {
    const at::Tensor wu = up.value_or(at::Tensor());
    FfnCounts counts;
    at::Tensor r = at::linear(x, wg);  // [N, H]
    threshold_and_count(r, call.activation, counts);
    const auto full = r.size(1);
    at::Tensor index;
    if (call.training->skip_inactive &&
        static_cast<double>(counts.active_neurons()) < kCompactBelow * static_cast<double>(full)) {
      const std::vector<std::int64_t> columns = active_columns(counts);
      index = at::tensor(columns, at::kLong);
      r = gather_columns(r, columns);  // [N, A]
    }
    const ActiveSet active(wg, wu, wd, index);
    const at::Tensor u = wu.defined() ? at::linear(x, active.up) : at::Tensor();  // [N, A]
    const at::Tensor h = hidden_state(r, u, call.activation.kind, &counts.l1);    // [N, A]
    if (call.training->recorder != nullptr) {
      call.training->recorder->record(call.layer, call.training->step, counts);
    }
    context->save_for_backward({x, r, u, h, active.gate, active.up, active.down, index});
    context->saved_data["full"] = full;
    context->saved_data["activation"] = static_cast<std::int64_t>(call.activation.kind);
    context->saved_data["l1_grad"] = call.training->l1_grad;
    return at::linear(h, active.down);  // [N, D]
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &r = saved[1], &u = saved[2], &h = saved[3];
    const at::Tensor &wg = saved[4], &wu = saved[5], &wd = saved[6], &index = saved[7];
    const auto full = context->saved_data["full"].toInt();
    const auto l1_grad = static_cast<float>(context->saved_data["l1_grad"].toDouble());
    const at::Tensor dy = grads[0].contiguous();

    const at::Tensor dwd = spread(dy.t().mm(h), index, 1, full);
    at::Tensor dr = dy.mm(wd);  // dh first
    const auto kind = static_cast<Activation>(context->saved_data["activation"].toInt());
    const at::Tensor du = hidden_backward(dr, r, u, kind, l1_grad);
    at::Tensor dx = dr.mm(wg);
    const at::Tensor dwg = spread(dr.t().mm(x), index, 0, full);
    at::Tensor dwu;
    if (u.defined()) {
      dx.addmm_(du, wu);
      dwu = spread(du.t().mm(x), index, 0, full);
    }
    return {dx, dwg, dwu, dwd, at::Tensor()};
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

class TrainingFeedForward : public FeedForward {
 public:
  TrainingFeedForward(FfnParameters parameters, ActivationChoice activation,
                      std::shared_ptr<FfnTraining> training)
      : parameters_(std::move(parameters)),
        activation_(activation),
        training_(std::move(training)),
        sparse_(io::yields_zeros(activation.kind) && !parameters_.has_bias()) {}

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    if (observer != nullptr && observer->wants_hidden()) {
      throw Error(ErrorKind::unsupported, "training feed-forward layer",
                  "does not hand out hidden states; observe the model before training begins");
    }
    return sparse_ && x.is_cpu() && !training_->tensor_operations ? sparse(x, layer)
                                                                  : dense(x, layer);
  }
  FfnPath path() const override { return FfnPath::dense; }
  std::string describe(std::int64_t /*tokens*/) const override {
    return std::string("training, ") + io::name_of(activation_.kind) +
           (sparse_ && training_->skip_inactive ? ", GEMMs of active neurons" : ", dense GEMMs");
  }

 private:
  at::Tensor sparse(const at::Tensor& x, std::int64_t layer) const {
    const Call call{sparse_activation(activation_), layer, training_.get()};
    const bool gated = parameters_.gated();
    return SparseFfnFunction::apply(x.contiguous(), gated ? parameters_.gate : parameters_.up,
                                    gated ? std::optional(parameters_.up) : std::nullopt,
                                    parameters_.down, call);
  }

  at::Tensor dense(const at::Tensor& x, std::int64_t layer) const {
    const FfnParameters& p = parameters_;
    const at::Tensor g =
        activate(p.gated() ? at::linear(x, p.gate, p.gate_bias) : at::linear(x, p.up, p.up_bias),
                 activation_);
    const at::Tensor h = p.gated() ? g * at::linear(x, p.up, p.up_bias) : g;
    record_dense(g, h, layer);
    return at::linear(AddL1Gradient::apply(h, training_->l1_grad), p.down, p.down_bias);
  }

  void record_dense(const at::Tensor& gate, const at::Tensor& h, std::int64_t layer) const {
    if (training_->recorder == nullptr) return;
    const torch::NoGradGuard no_grad;
    const auto fired = gate.ne(0);
    FfnCounts counts = counts_of(fired.sum(1), fired.sum(0));
    counts.l1 = at::linalg_vector_norm(h, 1, {}, false, at::kFloat).item<double>();
    training_->recorder->record(layer, training_->step, counts);
  }

  FfnParameters parameters_;
  ActivationChoice activation_;
  std::shared_ptr<FfnTraining> training_;
  bool sparse_;
};

}  // namespace

std::unique_ptr<FeedForward> make_training_feed_forward(const FfnParameters& parameters,
                                                        const ActivationChoice& activation,
                                                        std::shared_ptr<FfnTraining> training) {
  return std::make_unique<TrainingFeedForward>(parameters, activation, std::move(training));
}

}  // namespace twell::lm
