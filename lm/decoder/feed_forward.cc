#include "decoder/feed_forward.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <fmt/format.h>
#include <torch/types.h>

#include "decoder/linear.h"
#include "decoder/norm.h"
#include "decoder/sparse_operators.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

// One weight matrix, as it is or reordered for oneDNN.
class DenseMatrix {
 public:
  DenseMatrix() = default;
  DenseMatrix(const at::Tensor& weight, const at::Tensor& bias, bool prepack)
      : weight_(weight), bias_(bias), prepacked_(prepack) {
    if (prepack) weight_ = reorder(weight);
  }

  bool defined() const { return weight_.defined(); }
  at::Tensor operator()(const at::Tensor& x) const {
    if (!prepacked_) return linear_of(x, weight_, bias_);
    using Signature = at::Tensor(
        const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, std::string_view,
        c10::List<std::optional<at::Scalar>>, std::optional<std::string_view>);
    static const auto kOp = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                .typed<Signature>();
    // "none": the relu that oneDNN fuses makes NaN zero, and fusing saves less than 1 %.
    return kOp.call(x, weight_, bias(), "none", c10::List<std::optional<at::Scalar>>(), "");
  }
  // Times `factor`. Where weights are reordered, oneDNN multiplies as it stores, rounding once.
  at::Tensor times(const at::Tensor& x, const at::Tensor& factor) const {
    if (!prepacked_) return (*this)(x).mul_(factor);
    using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const std::optional<at::Tensor>&, std::string_view);
    static const auto kOp = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                                .typed<Signature>();
    return kOp.call(x, factor, weight_, bias(), "mul");
  }

 private:
  static at::Tensor reorder(const at::Tensor& weight) {
    using Signature = at::Tensor(const at::Tensor&, std::optional<std::int64_t>);
    static const auto kOp = c10::Dispatcher::singleton()
                                .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                                .typed<Signature>();
    return kOp.call(weight.contiguous(), std::nullopt);
  }

  std::optional<at::Tensor> bias() const {
    return bias_.defined() ? std::optional(bias_) : std::nullopt;
  }

  at::Tensor weight_, bias_;
  bool prepacked_ = false;
};

// Of h, in front of down.
Norm norm_of(const FfnParameters& p, const ActivationChoice& activation) {
  if (!activation.norm_eps) return {};
  return {{.kind = io::NormSpec::Kind::rms,
           .weight = p.norm_weight.defined(),
           .eps = *activation.norm_eps},
          {.tensor = p.norm_weight}};
}

class DenseFeedForward final : public FeedForward {
 public:
  DenseFeedForward(const FfnParameters& p, const ActivationChoice& activation, bool prepack)
      : up_(p.up, p.up_bias, prepack),
        down_(p.down, p.down_bias, prepack),
        norm_(norm_of(p, activation)),
        activation_(activation),
        prepacked_(prepack) {
    if (p.gated()) gate_ = DenseMatrix(p.gate, p.gate_bias, prepack);
    if (prepack) {
      own_bytes_ = (p.gated() ? p.gate.nbytes() : 0) + p.up.nbytes() + p.down.nbytes();
    }
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    const bool grad = at::GradMode::is_enabled();
    at::Tensor gate = gate_.defined() ? gate_(x) : up_(x);  // [N, H]
    gate = grad ? activate(gate, activation_) : activate_(gate, activation_);
    at::Tensor hidden = gate;
    // The gate outlives the product, to be shown.
    if (gate_.defined()) {
      const bool fused = !grad && activation_.up == Activation::identity;
      hidden = fused ? up_.times(x, gate) : gate * activate_up(up_(x), activation_);
    }
    if (observer != nullptr) show_activity(gate, hidden, layer, FfnPath::dense, *observer);
    return down_(norm_(hidden));
  }
  FfnPath path() const override { return FfnPath::dense; }
  std::int64_t own_bytes() const override { return static_cast<std::int64_t>(own_bytes_); }
  std::string describe(std::int64_t /*tokens*/) const override {
    return fmt::format("dense: PyTorch {} GEMMs, {}, {}", gate_.defined() ? 3 : 2,
                       words_of(activation_),
                       prepacked_ ? "weights reordered for oneDNN" : "weights as stored");
  }

 private:
  DenseMatrix gate_, up_, down_;
  Norm norm_;
  ActivationChoice activation_;
  bool prepacked_;
  std::size_t own_bytes_ = 0;  // of reordered weights
};

}  // namespace

void show_activity(const at::Tensor& gate, const at::Tensor& hidden, std::int64_t layer,
                   FfnPath path, FfnObserver& observer) {
  FfnActivity activity;
  activity.layer = layer;
  activity.rows = hidden.size(0);
  activity.neurons = hidden.size(1);
  activity.path = path;
  if (observer.wants_hidden()) {
    activity.gate = gate;
    activity.hidden = hidden;
  }
  if (observer.wants_counts()) {
    const at::Tensor fired = gate.detach().ne(0);
    activity.counts = counts_of(fired.sum(1), fired.sum(0));
  }
  observer.observe(activity);
}

at::Tensor activate(const at::Tensor& x, const ActivationChoice& activation) {
  switch (activation.kind) {
    case io::HiddenAct::silu:
      return at::silu(x);
    case io::HiddenAct::gelu:
      return at::gelu(x);
    case io::HiddenAct::gelu_tanh:
      return at::gelu(x, "tanh");
    case io::HiddenAct::relu:
      return at::relu(x);
    case io::HiddenAct::relu_squared:
      return at::relu(x).square();
    case io::HiddenAct::fat_relu:
      return at::threshold(x, activation.threshold, 0.0);
  }
  throw Error(ErrorKind::invalid_argument, "activate", "unknown activation");
}

at::Tensor& activate_(at::Tensor& x, const ActivationChoice& activation) {
  switch (activation.kind) {
    case io::HiddenAct::silu:
      return at::silu_(x);
    case io::HiddenAct::gelu:
      return at::gelu_(x);
    case io::HiddenAct::gelu_tanh:
      return at::gelu_(x, "tanh");
    case io::HiddenAct::relu:
      return at::relu_(x);
    case io::HiddenAct::relu_squared:
      return at::relu_(x).mul_(x);
    case io::HiddenAct::fat_relu:
      return at::threshold_(x, activation.threshold, 0.0);
  }
  throw Error(ErrorKind::invalid_argument, "activate_", "unknown activation");
}

at::Tensor activate_up(const at::Tensor& up, const ActivationChoice& activation) {
  switch (activation.up) {
    case Activation::identity:
      return up;
    case Activation::relu:
      return at::relu(up);
    case Activation::relu_squared:
      return at::relu(up).square();
    case Activation::fat_relu:
      break;
  }
  throw Error(ErrorKind::invalid_argument, "activate_up", "unknown activation");
}

std::string words_of(const ActivationChoice& activation) {
  std::string out = io::name_of(activation.kind);
  if (activation.up != Activation::identity)
    out += fmt::format(", {} of up", name_of(activation.up));
  if (activation.norm_eps) out += ", norm";
  return out;
}

bool is_plain(const FfnParameters& parameters, const ActivationChoice& activation) {
  return !parameters.has_vectors() && activation.up == Activation::identity && !activation.norm_eps;
}

at::Tensor input_of_down(const at::Tensor& hidden, const FfnParameters& parameters,
                         const ActivationChoice& activation) {
  return norm_of(parameters, activation)(hidden);
}

bool FfnParameters::has_vectors() const {
  bool any = false;
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) any = any || (*this)[i].defined();
  return any;
}

bool FfnParameters::has_codes() const {
  const auto is = [](const at::Tensor& w) { return w.defined() && is_of_codes(w); };
  return is(gate) || is(up) || is(down);
}

const char* name_of(FfnPath path) {
  return path == FfnPath::dense ? "dense" : path == FfnPath::sparse ? "sparse" : "auto";
}

FfnPath parse_ffn_path(std::string_view text) {
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
    if (text == name_of(path)) return path;
  }
  throw Error(ErrorKind::invalid_argument, "ffn path",
              fmt::format("expected dense, sparse or auto, got '{}'", text));
}

std::unique_ptr<FeedForward> make_dense_feed_forward(const FfnParameters& parameters,
                                                     const ActivationChoice& activation,
                                                     bool prepack) {
  return std::make_unique<DenseFeedForward>(parameters, activation, prepack);
}

}  // namespace twell::lm
