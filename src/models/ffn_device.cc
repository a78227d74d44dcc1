#include "models/ffn_device.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <tuple>
#include <utility>

#include "models/operators.h"
#include "models/path_choice.h"
#include "twell/ffn.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using Counted = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // y, row_nnz, neuron_counts
template <class Result>
using Gated = Result(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                     c10::string_view, double);
template <class Result>
using Plain = Result(const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::string_view,
                     double);

// Counting adds an atomic addition for each non-zero: seldom enough not to be seen, often enough to
// notice within a screenful of text that the density has changed.
constexpr std::int64_t kSampledCalls = 16;

Activation sparse_kind(io::HiddenAct kind) {
  switch (kind) {
    case io::HiddenAct::relu:
      return Activation::relu;
    case io::HiddenAct::relu_squared:
      return Activation::relu_squared;
    case io::HiddenAct::fat_relu:
      return Activation::fat_relu;
    default:
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  fmt::format("activation '{}' yields no zeros to skip; use the dense path (--ffn "
                              "dense), or a model trained with relu, relu2 or fat_relu",
                              io::name_of(kind)));
  }
}

class DeviceFeedForward final : public FeedForward {
 public:
  DeviceFeedForward(const FfnParameters& p, const ActivationChoice& choice, FfnPath path)
      : choice_(choice),
        kind_(sparse_kind(choice.kind)),
        path_(path),
        runtime_(runtime_of(p.up.device())),
        probe_(runtime_) {
    if (p.has_bias()) {
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  "biases in the feed-forward layer (mlp_bias) are not supported; use --ffn dense");
    }
    const at::ScalarType dtype = p.up.scalar_type();
    if (dtype != at::kHalf && dtype != at::kBFloat16) {
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  fmt::format("weights must be bf16 or f16 on a GPU, got {}; use --dtype bf16 or "
                              "--ffn dense",
                              c10::toString(dtype)));
    }
    const at::NoGradGuard no_grad;
    static const auto pack = find_operator<at::Tensor(const at::Tensor&)>("twell::pack_weight");
    const at::Tensor first = (p.gated() ? p.gate : p.up).detach();  // [H, D]
    shape_ = {first.size(1), first.size(0), p.gated(), dtype};
    packed_ = pack.call(first.contiguous());
    down_ = p.down.detach().t().contiguous();
    own_bytes_ = static_cast<std::int64_t>(packed_.nbytes());
    if (down_.const_data_ptr() != p.down.const_data_ptr()) {
      own_bytes_ += static_cast<std::int64_t>(down_.nbytes());
    }
    if (p.gated()) up_ = p.up.detach().contiguous();
    if (path == FfnPath::automatic) {
      paths_ = shared_choice(runtime_, shape_);
      if (p.up.is_cuda() && !paths_->corrected()) calibrate();
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
    const bool choosing = path_ == FfnPath::automatic;
    const bool sampled = choosing && x.size(0) > 0 && takes_sample();
    if (choosing && (hidden_wanted || x.size(0) == 0 || dense_is_faster(x.size(0)))) {
      return dense(x, layer, observer, sampled);
    }
    return sparse(x, layer, observer, sampled);
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override { return own_bytes_; }
  std::string describe() const override {
    return fmt::format("{}: {}, {}", name_of(path_), io::name_of(choice_.kind),
                       runtime_.explain_ffn(shape_, 1));
  }

 private:
  // Every kSampledCalls-th call, and the first one after a recording, whose replays are not seen.
  bool takes_sample() {
    if (runtime_.capturing()) {
      recorded_ = true;
      return false;
    }
    return calls_++ % kSampledCalls == 0 || std::exchange(recorded_, false);
  }

  bool dense_is_faster(std::int64_t rows) {
    return paths_->dense_is_faster(rows, probe_.density());
  }

  // Times both paths once for every shape of layer, as the first one is loaded: for one token, for
  // some, for many. Inputs are random, so about half of the neurons fire; the estimate carries the
  // ratio over to other densities.
  void calibrate() {
    const c10::InferenceMode inference;
    for (const std::int64_t rows : {1, 32, 1024}) {
      const at::Tensor x = at::randn({rows, shape_.depth}, packed_.options());
      const auto counted = run<Counted>("twell::gated_ffn_stats", "twell::ffn_stats", x);
      const double density =
          std::get<1>(counted).sum().item<double>() / static_cast<double>(rows * shape_.hidden);
      const double sparse_seconds =
          seconds_of(runtime_, [&] { run<at::Tensor>("twell::gated_ffn", "twell::ffn", x); });
      const double dense_seconds = seconds_of(runtime_, [&] { dense(x, 0, nullptr, false); });
      paths_->correct(rows, density, sparse_seconds, dense_seconds);
    }
  }

  at::Tensor sparse(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled) {
    FfnActivity activity;
    activity.layer = layer;
    activity.rows = x.size(0);
    activity.hidden_units = shape_.hidden;
    activity.path = FfnPath::sparse;
    at::Tensor y;
    const bool observed = observer != nullptr && observer->wants_counts();
    if (observed || sampled) {
      at::Tensor rows, neurons;
      std::tie(y, rows, neurons) = run<Counted>("twell::gated_ffn_stats", "twell::ffn_stats", x);
      if (sampled) probe_.record(rows.sum(), x.size(0) * shape_.hidden);
      if (observed) {
        activity.row_nnz = rows.to(at::kLong);
        activity.neuron_nnz = neurons;
      }
    } else {
      y = run<at::Tensor>("twell::gated_ffn", "twell::ffn", x);
    }
    if (observer != nullptr) observer->observe(activity);
    return y;
  }

  template <class Result>
  Result run(const char* gated_name, const char* plain_name, const at::Tensor& x) const {
    static const auto gated = find_operator<Gated<Result>>(gated_name);
    static const auto plain = find_operator<Plain<Result>>(plain_name);
    const auto threshold = kind_ == Activation::fat_relu ? double{choice_.threshold} : 0.0;
    const char* name = twell::name_of(kind_);
    return up_.defined() ? gated.call(x, packed_, up_, down_, name, threshold)
                         : plain.call(x, packed_, down_, name, threshold);
  }

  // PyTorch's GEMMs on the same memory: packing pads the gate's rows and does not reorder them.
  at::Tensor dense(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled) {
    const at::Tensor first = packed_.view({packed_.size(0) * 16, -1})
                                 .narrow(0, 0, shape_.hidden)
                                 .narrow(1, 0, shape_.depth);
    const at::Tensor gate = activate(at::linear(x, first), choice_);
    const at::Tensor hidden = up_.defined() ? gate * at::linear(x, up_) : gate;
    const bool counted = observer != nullptr && observer->wants_counts();
    if (sampled || counted || observer != nullptr) {
      FfnActivity activity;
      activity.layer = layer;
      activity.rows = x.size(0);
      activity.hidden_units = shape_.hidden;
      const at::Tensor fired = sampled || counted ? gate.ne(0) : at::Tensor();
      if (sampled) probe_.record(fired.sum(), fired.numel());
      if (counted) {
        activity.row_nnz = fired.sum(1);
        activity.neuron_nnz = fired.sum(0);
      }
      if (observer != nullptr && observer->wants_hidden()) {
        activity.gate = gate;
        activity.hidden = hidden;
      }
      if (observer != nullptr) observer->observe(activity);
    }
    return at::mm(hidden, down_);
  }

  ActivationChoice choice_;
  Activation kind_;
  FfnPath path_;
  DeviceRuntime& runtime_;
  DensityProbe probe_;
  std::shared_ptr<PathChoice> paths_;  // automatic only
  LayerShape shape_;
  at::Tensor packed_;  // of the gate, or of up in a model without one
  at::Tensor up_;      // [H, D], undefined without a gate
  at::Tensor down_;    // [H, D]
  std::int64_t own_bytes_ = 0;
  std::int64_t calls_ = 0;
  bool recorded_ = false;
};

}  // namespace

DensityProbe::DensityProbe(DeviceRuntime& runtime)
    : runtime_(runtime), host_(runtime.host_buffer(1, at::kLong)), marker_(runtime.make_marker()) {}

void DensityProbe::record(const at::Tensor& nnz, std::int64_t elements) {
  if (elements == 0 || runtime_.capturing()) return;
  (void)density();
  if (elements_ != 0) return;
  host_.copy_(nnz.view({1}), /*non_blocking=*/true);
  marker_->set();
  elements_ = elements;
}

double DensityProbe::density() {
  // Asking an event is not allowed while a graph is recorded.
  if (elements_ != 0 && !runtime_.capturing() && marker_->reached()) {
    density_ =
        static_cast<double>(*host_.const_data_ptr<std::int64_t>()) / static_cast<double>(elements_);
    elements_ = 0;
  }
  return density_;
}

std::unique_ptr<FeedForward> make_device_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path) {
  return std::make_unique<DeviceFeedForward>(parameters, activation, path);
}

}  // namespace twell::lm
