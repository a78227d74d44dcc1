// The feed-forward layer on torch.ops.twell.gated_ffn and ffn, through the dispatcher.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "models/cost_model.h"
#include "models/feed_forward.h"
#include "models/ffn_device.h"
#include "models/gate_form.h"
#include "models/sparse_operators.h"
#include "models/weights.h"
#include "twell/context.h"
#include "twell/ffn.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

class SparseFeedForward final : public FeedForward {
 public:
  SparseFeedForward(const FfnParameters& p, const ActivationChoice& choice, FfnPath path,
                    const CostModel* cost)
      : choice_(choice), activation_(sparse_activation(choice)), path_(path) {
    check_sparse_layer(p);
    const at::ScalarType dtype = p.up.scalar_type();
    if (dtype != at::kFloat && dtype != at::kBFloat16) {
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  fmt::format("weights must be bf16 or f32, got {}", c10::toString(dtype)));
    }
    at::NoGradGuard no_grad;
    const at::Tensor first = (p.gated() ? p.gate : p.up).detach().contiguous();  // [H, D]
    const std::int64_t neurons = first.size(0);
    const std::int64_t width = first.size(1);
    gate_.emplace(first, default_cpu_tier(), operands_);
    const at::Tensor down = p.down.detach().t();  // [H, D]
    operands_.down = down.is_contiguous() ? down : transposed_copy(p.down.detach());
    if (!down.is_contiguous()) own_bytes_ += static_cast<std::int64_t>(operands_.down.nbytes());

    weights_.down = matrix_view(operands_.down);
    weights_.gate = {nullptr, weights_.down.dtype, neurons, width};
    if (p.gated()) {
      operands_.up = p.up.detach().contiguous();
      if (!operands_.up.is_same(p.up.detach()) &&
          operands_.up.const_data_ptr() != p.up.const_data_ptr()) {
        own_bytes_ += static_cast<std::int64_t>(operands_.up.nbytes());
      }
      weights_.up = matrix_view(operands_.up);
    }
    if (path == FfnPath::automatic) {
      first_ = first;
      cost_ = cost != nullptr ? *cost : load_cost_model(default_cpu_tier(), at::get_num_threads());
    }
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    const bool hidden_wanted = check_sparse_call(x, path_, observer);
    if (path_ == FfnPath::automatic && (hidden_wanted || prefers_dense(x.size(0)))) {
      return dense(x, layer, observer);
    }
    return sparse(x, layer, observer);
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override {
    std::int64_t bytes = own_bytes_;
    for (const at::Tensor* gate : {&operands_.packed, &operands_.gate, &operands_.screen}) {
      if (gate->defined()) bytes += static_cast<std::int64_t>(gate->nbytes());
    }
    return bytes;
  }
  std::string describe(std::int64_t tokens) const override {
    return fmt::format(
        "{}: {}, {}{}{}", name_of(path_), io::name_of(choice_.kind), gate_text(),
        plan_ffn(Context({.threads = at::get_num_threads(), .tier = {}}), tokens, weights_)
            .to_string(),
        path_ == FfnPath::automatic
            ? fmt::format("; dense GEMMs where they are faster, {}",
                          density_ < 0 ? std::string("no density seen yet")
                                       : fmt::format("last density {:.2f} %", density_ * 100))
            : std::string());
  }

 private:
  at::Tensor sparse(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) {
    const bool observed = observer != nullptr && observer->wants_counts();
    gate_->prepare(x, operands_);
    const bool choosing = (path_ == FfnPath::automatic || gate_->screens()) && wants_density();
    FfnActivity activity;
    activity.layer = layer;
    activity.rows = x.size(0);
    activity.hidden_units = weights_.gate.rows;
    activity.path = FfnPath::sparse;
    at::Tensor y;
    if (observed || choosing || gate_->undecided()) {
      CountedOutput counted = sparse_ffn_counted(x, operands_, activation_);
      y = std::move(counted.y);
      activity.row_nnz = counted.row_nnz.to(at::kLong);
      activity.neuron_nnz = std::move(counted.neuron_nnz);
      if (x.size(0) > 0) update_density(activity.row_nnz.sum().item<double>(), x.size(0));
      gate_->update(counted.candidates, x.size(0), operands_);
      if (!observed) activity.row_nnz = activity.neuron_nnz = at::Tensor();
    } else {
      y = sparse_ffn(x, operands_, activation_);
    }
    if (observer != nullptr) observer->observe(activity);
    return y;
  }

  std::string gate_text() const {
    if (!gate_->screens()) return "packed gate, ";
    return gate_->share() < 0
               ? "screened gate, "
               : fmt::format("screened gate ({:.1f} % left), ", 100 * gate_->share());
  }

  // Needs no other weights than the sparse path has and the unpacked gate, whose mapped pages come
  // back from the file when it is used.
  at::Tensor dense(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) {
    const FfnParameters parameters{operands_.up.defined() ? first_ : at::Tensor(),
                                   operands_.up.defined() ? operands_.up : first_,
                                   operands_.down.t(),
                                   {},
                                   {},
                                   {}};
    struct Counter final : FfnObserver {
      bool wants_hidden() const override { return true; }
      bool wants_counts() const override { return outer != nullptr && outer->wants_counts(); }
      void observe(const FfnActivity& activity) override {
        if (sample) nnz = at::count_nonzero(activity.gate).item<std::int64_t>();
        if (outer == nullptr) return;
        FfnActivity shown = activity;
        if (!outer->wants_hidden()) shown.gate = shown.hidden = at::Tensor();
        outer->observe(shown);
      }
      FfnObserver* outer = nullptr;
      bool sample = false;
      std::int64_t nnz = 0;
    } counter;
    counter.outer = observer;
    counter.sample = wants_density() && x.size(0) > 0;
    if (!dense_ && prefers_dense(x.size(0))) {
      dense_ = make_fastest_dense_feed_forward(parameters, choice_);
      own_bytes_ += dense_->own_bytes();
    }
    // Without dense_, an observer alone wanted this path.
    at::Tensor y = dense_
                       ? dense_->forward(x, layer, &counter)
                       : make_dense_feed_forward(parameters, choice_)->forward(x, layer, &counter);
    if (counter.sample) update_density(static_cast<double>(counter.nnz), x.size(0));
    return y;
  }

  // A count costs a few per cent of a small call, on either path. Every eighth call is enough to
  // notice that the text has changed.
  bool wants_density() { return calls_++ % 8 == 0; }
  bool prefers_dense(std::int64_t rows) const {
    return density_ >= 0 && cost_.prefers_dense(rows, density_, size());
  }
  LayerSize size() const {
    return {weights_.gate.rows * weights_.gate.cols, operands_.up.defined()};
  }

  // A few tokens say little of a text: 64 of them count in full.
  void update_density(double nnz, std::int64_t rows) {
    const double now = nnz / (static_cast<double>(rows) * static_cast<double>(weights_.gate.rows));
    const double weight = std::min(1.0, static_cast<double>(rows) / 64);
    density_ = density_ < 0 ? now : density_ + weight * (now - density_);
  }

  ActivationChoice choice_;
  ActivationSpec activation_;
  FfnPath path_;
  SparseOperands operands_;
  std::optional<GateForm> gate_;
  at::Tensor first_;    // [H, D] as the gate, automatic only
  FfnWeights weights_;  // for plans: without the gate's data
  std::int64_t own_bytes_ = 0;
  CostModel cost_;                      // automatic only
  std::unique_ptr<FeedForward> dense_;  // automatic only, once it was needed
  double density_ = -1.0;               // of the tokens counted last; below 0: none yet
  std::int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path, const CostModel* cost) {
  if (!parameters.up.is_cpu()) {
    return make_device_feed_forward(parameters, activation, path,
                                    runtime_of(parameters.up.device()));
  }
  return std::make_unique<SparseFeedForward>(parameters, activation, path, cost);
}

}  // namespace twell::lm
