// The feed-forward layer on torch.ops.twell.gated_ffn and ffn, through the dispatcher.
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "models/cost_model.h"
#include "models/feed_forward.h"
#include "models/ffn_device.h"
#include "models/linear.h"
#include "models/operators.h"
#include "models/weights.h"
#include "twell/context.h"
#include "twell/ffn.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using Layer = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::string_view,
                         double);
using Gated = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                         c10::string_view, double);
using Counted = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // y, row_nnz, neuron_counts
using LayerCounted = Counted(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             c10::string_view, double);
using GatedCounted = Counted(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, c10::string_view, double);

DType dtype_of_tensor(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat ? DType::f32 : DType::bf16;
}

ConstMatrixView view(const at::Tensor& matrix) {
  return {matrix.const_data_ptr(), dtype_of_tensor(matrix), matrix.size(0), matrix.size(1),
          matrix.stride(0)};
}

ActivationSpec sparse_activation(const ActivationChoice& choice) {
  switch (choice.kind) {
    case io::HiddenAct::relu:
      return {Activation::relu, 0.0F};
    case io::HiddenAct::relu_squared:
      return {Activation::relu_squared, 0.0F};
    case io::HiddenAct::fat_relu:
      return {Activation::fat_relu, choice.threshold};
    default:
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  fmt::format("activation '{}' yields no zeros to skip; use the dense path (--ffn "
                              "dense), or a model trained with relu, relu2 or fat_relu",
                              io::name_of(choice.kind)));
  }
}

class SparseFeedForward final : public FeedForward {
 public:
  SparseFeedForward(const FfnParameters& p, const ActivationChoice& choice, FfnPath path)
      : choice_(choice), activation_(sparse_activation(choice)), path_(path) {
    if (p.has_bias()) {
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  "biases in the feed-forward layer (mlp_bias) are not supported; use --ffn dense");
    }
    const at::ScalarType dtype = p.up.scalar_type();
    if (dtype != at::kFloat && dtype != at::kBFloat16) {
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  fmt::format("weights must be bf16 or f32, got {}", c10::toString(dtype)));
    }
    at::NoGradGuard no_grad;
    const at::Tensor first = (p.gated() ? p.gate : p.up).detach().contiguous();  // [H, D]
    const std::int64_t neurons = first.size(0);
    const std::int64_t width = first.size(1);
    packed_ = packed_weight(first);
    own_bytes_ = static_cast<std::int64_t>(packed_.nbytes());

    const at::Tensor down = p.down.detach().t();  // [H, D]
    down_ = down.is_contiguous() ? down : transposed_copy(p.down.detach());
    if (!down.is_contiguous()) own_bytes_ += static_cast<std::int64_t>(down_.nbytes());

    weights_.gate = {packed_.const_data_ptr(), dtype_of_tensor(first), neurons, width};
    weights_.down = view(down_);
    if (p.gated()) {
      up_ = p.up.detach().contiguous();
      if (!up_.is_same(p.up.detach()) && up_.const_data_ptr() != p.up.const_data_ptr()) {
        own_bytes_ += static_cast<std::int64_t>(up_.nbytes());
      }
      weights_.up = view(up_);
    }
    if (path == FfnPath::automatic) {
      first_ = first;
      cost_ = load_cost_model(default_cpu_tier(), at::get_num_threads());
    }
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    if (at::GradMode::is_enabled() && x.requires_grad()) {
      throw Error(
          ErrorKind::unsupported, "sparse FFN",
          "this layer is for inference; load the model with trainable = true for gradients");
    }
    const bool hidden_wanted = observer != nullptr && observer->wants_hidden();
    if (hidden_wanted && path_ == FfnPath::sparse) {
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  "hidden activations are never in memory on this path; use the dense one (--ffn "
                  "dense) to look at them");
    }
    if (path_ == FfnPath::automatic && (hidden_wanted || prefers_dense(x.size(0)))) {
      return dense(x, layer, observer);
    }
    return sparse(x, layer, observer);
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override { return own_bytes_; }
  std::string describe() const override {
    return fmt::format(
        "{}: {}, {}{}", name_of(path_), io::name_of(choice_.kind),
        plan_ffn(Context({.threads = at::get_num_threads(), .tier = {}}), 1, weights_).to_string(),
        path_ == FfnPath::automatic
            ? fmt::format("; dense GEMMs where they are faster, {}",
                          density_ < 0 ? std::string("no density seen yet")
                                       : fmt::format("last density {:.2f} %", density_ * 100))
            : std::string());
  }

 private:
  at::Tensor sparse(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) {
    const bool observed = observer != nullptr && observer->wants_counts();
    const bool choosing = path_ == FfnPath::automatic && wants_density();
    FfnActivity activity;
    activity.layer = layer;
    activity.rows = x.size(0);
    activity.hidden_units = weights_.gate.rows;
    activity.path = FfnPath::sparse;
    at::Tensor y;
    if (observed || choosing) {
      std::tie(y, activity.row_nnz, activity.neuron_nnz) = run_counted(x);
      activity.row_nnz = activity.row_nnz.to(at::kLong);
      if (x.size(0) > 0) update_density(activity.row_nnz.sum().item<double>(), x.size(0));
      if (!observed) activity.row_nnz = activity.neuron_nnz = at::Tensor();
    } else {
      y = run(x);
    }
    if (observer != nullptr) observer->observe(activity);
    return y;
  }

  at::Tensor run(const at::Tensor& x) const {
    static const auto layer = find_operator<Layer>("twell::ffn");
    static const auto gated = find_operator<Gated>("twell::gated_ffn");
    const auto threshold = static_cast<double>(activation_.threshold);
    const char* name = name_of(activation_.kind);
    return up_.defined() ? gated.call(x, packed_, up_, down_, name, threshold)
                         : layer.call(x, packed_, down_, name, threshold);
  }

  Counted run_counted(const at::Tensor& x) const {
    static const auto layer = find_operator<LayerCounted>("twell::ffn_stats");
    static const auto gated = find_operator<GatedCounted>("twell::gated_ffn_stats");
    const auto threshold = static_cast<double>(activation_.threshold);
    const char* name = name_of(activation_.kind);
    return up_.defined() ? gated.call(x, packed_, up_, down_, name, threshold)
                         : layer.call(x, packed_, down_, name, threshold);
  }

  // Needs no other weights than the sparse path has and the unpacked gate, whose mapped pages come
  // back from the file when it is used.
  at::Tensor dense(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) {
    const FfnParameters parameters{
        up_.defined() ? first_ : at::Tensor(), up_.defined() ? up_ : first_, down_.t(), {}, {}, {}};
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
    return density_ >= 0 && cost_.dense_is_faster(rows, density_, size());
  }
  LayerSize size() const { return {weights_.gate.rows * weights_.gate.cols, up_.defined()}; }

  // A few tokens say little of a text: 64 of them count in full.
  void update_density(double nnz, std::int64_t rows) {
    const double now = nnz / (static_cast<double>(rows) * static_cast<double>(weights_.gate.rows));
    const double weight = std::min(1.0, static_cast<double>(rows) / 64);
    density_ = density_ < 0 ? now : density_ + weight * (now - density_);
  }

  ActivationChoice choice_;
  ActivationSpec activation_;
  FfnPath path_;
  at::Tensor packed_;  // of the gate, or of up in a model without one
  at::Tensor up_;      // [H, D], undefined without a gate
  at::Tensor down_;    // [H, D]
  at::Tensor first_;   // [H, D] as `packed_`, automatic only
  FfnWeights weights_;
  std::int64_t own_bytes_ = 0;
  CostModel cost_;                      // automatic only
  std::unique_ptr<FeedForward> dense_;  // automatic only, once it was needed
  double density_ = -1.0;               // of the tokens counted last; below 0: none yet
  std::int64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path) {
  if (!parameters.up.is_cpu()) return make_device_feed_forward(parameters, activation, path);
  return std::make_unique<SparseFeedForward>(parameters, activation, path);
}

}  // namespace twell::lm
