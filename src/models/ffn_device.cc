#include "models/ffn_device.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "models/linear.h"
#include "models/path_choice.h"
#include "models/sparse_operators.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

// Counting adds an atomic addition for each non-zero: seldom enough not to be seen, often enough to
// notice within a screenful of text that the density has changed.
constexpr std::int64_t kSampledCalls = 16;

class DeviceFeedForward final : public FeedForward {
 public:
  DeviceFeedForward(const FfnParameters& p, const ActivationChoice& choice, FfnPath path,
                    DeviceRuntime& runtime)
      : choice_(choice),
        activation_(sparse_activation(choice)),
        path_(path),
        runtime_(runtime),
        probe_(runtime) {
    check_sparse_layer(p);
    const at::ScalarType dtype = p.up.scalar_type();
    if (dtype != at::kHalf && dtype != at::kBFloat16) {
      throw Error(ErrorKind::unsupported, "sparse FFN",
                  fmt::format("weights must be bf16 or f16 on a GPU, got {}; use --dtype bf16 or "
                              "--ffn dense",
                              c10::toString(dtype)));
    }
    const at::NoGradGuard no_grad;
    const at::Tensor first = (p.gated() ? p.gate : p.up).detach();  // [H, D]
    shape_ = {first.size(1), first.size(0), p.gated(), dtype};
    weights_.packed = packed_weight(first);
    weights_.down = p.down.detach().t().contiguous();
    own_bytes_ = static_cast<std::int64_t>(weights_.packed.nbytes());
    if (!weights_.down.is_alias_of(p.down)) {
      own_bytes_ += static_cast<std::int64_t>(weights_.down.nbytes());
    }
    if (p.gated()) weights_.up = p.up.detach().contiguous();
    if (path == FfnPath::automatic) {
      paths_ = shared_choice(runtime_, shape_);
      if (p.up.is_cuda()) paths_->calibrate_once([this] { calibrate(); });
    }
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    const bool hidden_wanted = check_sparse_call(x, path_, observer);
    if (path_ != FfnPath::automatic) return sparse(x, layer, observer, false);
    const bool sampled = x.size(0) > 0 && takes_sample(x);
    if (hidden_wanted || x.size(0) == 0 || prefers_dense(x.size(0))) {
      return dense(x, layer, observer, sampled);
    }
    return sparse(x, layer, observer, sampled);
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override { return own_bytes_; }
  std::string describe(std::int64_t tokens) const override {
    return fmt::format("{}: {}, {}", name_of(path_), io::name_of(choice_.kind),
                       runtime_.explain_ffn(shape_, tokens));
  }

 private:
  // Every kSampledCalls-th call, and the first one after a recording, whose replays are not seen.
  bool takes_sample(const at::Tensor& x) {
    if (runtime_.capturing()) {
      recorded_ = true;
      return false;
    }
    if (!std::exchange(counted_, true)) {
      // A whole prompt may depend on the first choice: its density is worth a product with the gate
      // and the one wait for the device that a layer makes.
      const at::Tensor fired = activate(at::linear(x, first()), choice_).ne(0);
      probe_.record(fired.sum(), fired.numel());
      runtime_.synchronize();
      return false;
    }
    return calls_++ % kSampledCalls == 0 || std::exchange(recorded_, false);
  }

  bool prefers_dense(std::int64_t rows) {
    if (const auto density = probe_.density()) {
      dense_before_ = paths_->dense_is_faster(rows, *density, dense_before_);
    }
    return dense_before_;
  }

  // Times both paths once for every shape of layer, as the first one is loaded: for one token and
  // for some, recorded as decoding has them, and for many as a prompt has them.
  void calibrate() {
    const c10::InferenceMode inference;
    for (const std::int64_t rows : {1, 32, 1024}) {
      const bool recorded = rows <= 32;
      const at::Tensor x = at::randn({rows, shape_.depth}, weights_.packed.options());
      const double dense_seconds =
          seconds_of(runtime_, recorded, [&] { dense(x, 0, nullptr, false); });
      const at::Tensor values = at::linear(x[0], first()).to(at::kFloat);  // [H]
      for (const double density : {0.01, 0.1, 0.5}) {
        // Above this value lie so many of the first row's, and about as many of the others'.
        const auto rank = std::clamp<std::int64_t>(
            std::llround((1 - density) * static_cast<double>(shape_.hidden)), 1, shape_.hidden);
        const float level = std::get<0>(values.kthvalue(rank)).item<float>();
        const ActivationSpec activation{Activation::fat_relu, std::max(0.0F, level)};
        const at::Tensor nnz = sparse_ffn_counted(x, weights_, activation).row_nnz.sum();
        const double sparse_seconds =
            seconds_of(runtime_, recorded, [&] { sparse_ffn(x, weights_, activation); });
        paths_->correct(rows, nnz.item<double>() / static_cast<double>(rows * shape_.hidden),
                        sparse_seconds, dense_seconds);
      }
    }
  }

  // The gate, or up in a model without one, where it lies packed: that pads rows and does not
  // reorder them. [H, D]
  at::Tensor first() const {
    return weights_.packed.view({weights_.packed.size(0) * 16, -1})
        .narrow(0, 0, shape_.hidden)
        .narrow(1, 0, shape_.depth);
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
      CountedOutput counted = sparse_ffn_counted(x, weights_, activation_);
      y = std::move(counted.y);
      if (sampled) probe_.record(counted.row_nnz.sum(), x.size(0) * shape_.hidden);
      if (observed) {
        activity.row_nnz = counted.row_nnz.to(at::kLong);
        activity.neuron_nnz = std::move(counted.neuron_nnz);
      }
    } else {
      y = sparse_ffn(x, weights_, activation_);
    }
    if (observer != nullptr) observer->observe(activity);
    return y;
  }

  // PyTorch's GEMMs on the same memory.
  at::Tensor dense(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled) {
    const at::Tensor gate = activate(at::linear(x, first()), choice_);
    const at::Tensor hidden = weights_.up.defined() ? gate * at::linear(x, weights_.up) : gate;
    const bool counted = observer != nullptr && observer->wants_counts();
    const at::Tensor fired = sampled || counted ? gate.ne(0) : at::Tensor();
    if (sampled) probe_.record(fired.sum(), fired.numel());
    if (observer != nullptr) {
      FfnActivity activity;
      activity.layer = layer;
      activity.rows = x.size(0);
      activity.hidden_units = shape_.hidden;
      if (counted) {
        activity.row_nnz = fired.sum(1);
        activity.neuron_nnz = fired.sum(0);
      }
      if (observer->wants_hidden()) {
        activity.gate = gate;
        activity.hidden = hidden;
      }
      observer->observe(activity);
    }
    return at::mm(hidden, weights_.down);
  }

  ActivationChoice choice_;
  ActivationSpec activation_;
  FfnPath path_;
  DeviceRuntime& runtime_;
  DensityProbe probe_;
  std::shared_ptr<PathChoice> paths_;  // automatic only
  LayerShape shape_;
  SparseOperands weights_;
  std::int64_t own_bytes_ = 0;
  bool counted_ = false;  // the first call
  std::int64_t calls_ = 0;
  bool recorded_ = false;
  bool dense_before_ = true;  // what a layer that nothing is known of takes, too
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

std::optional<double> DensityProbe::density() {
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
                                                      FfnPath path, DeviceRuntime& runtime) {
  return std::make_unique<DeviceFeedForward>(parameters, activation, path, runtime);
}

}  // namespace twell::lm
