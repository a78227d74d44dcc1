#include "decoder/sparse_feed_forward.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "twell/status.h"

namespace twell::lm {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::unsupported, "sparse FFN", message);
}

void require_parameters(const FfnParameters& p, const ActivationChoice& activation, bool on_cpu) {
  if (!on_cpu && !is_plain(p, activation)) {
    fail(
        "biases (mlp_bias), an activation of up or a norm in the feed-forward layer are supported "
        "on a CPU only; use --path dense");
  }
  const at::ScalarType dtype = p.dtype_of_x();
  if (dtype != at::kBFloat16 && dtype != (on_cpu ? at::kFloat : at::kHalf)) {
    fail(fmt::format("weights must be bf16 or {}, got {}; use --dtype bf16 or --path dense",
                     on_cpu ? "f32" : "f16 on a GPU", c10::toString(dtype)));
  }
}

// Between a dense layer and an observer.
class Passing final : public FfnObserver {
 public:
  Passing(FfnObserver* outer, const std::function<void(const at::Tensor&)>& see_gate,
          const std::function<void(FfnActivity&)>& show)
      : outer_(outer), see_gate_(see_gate), show_(show) {}
  bool wants_hidden() const override {
    return see_gate_ || (outer_ != nullptr && outer_->wants_hidden());
  }
  bool wants_counts() const override { return outer_ != nullptr && outer_->wants_counts(); }
  void observe(const FfnActivity& activity) override {
    if (see_gate_) see_gate_(activity.gate);
    if (outer_ == nullptr) return;
    FfnActivity shown = activity;
    if (!outer_->wants_hidden()) shown.gate = shown.hidden = at::Tensor();
    if (show_) show_(shown);
    outer_->observe(shown);
  }

 private:
  FfnObserver* outer_;
  const std::function<void(const at::Tensor&)>& see_gate_;
  const std::function<void(FfnActivity&)>& show_;
};

}  // namespace

at::Tensor DenseSide::forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer,
                              const std::function<void(const at::Tensor& gate)>& see_gate,
                              const std::function<void(FfnActivity&)>& show) {
  Passing passing(observer, see_gate, show);
  if (!dense_) dense_ = make_dense_feed_forward(parameters_(), activation_);
  return dense_->forward(x, layer, &passing);
}

void require_inference(const at::Tensor& x) {
  if (at::GradMode::is_enabled() && x.requires_grad()) {
    fail("this layer is for inference; load the model with trainable = true for gradients");
  }
}

void require_no_hidden(const FfnObserver* observer) {
  if (observer != nullptr && observer->wants_hidden()) {
    fail(
        "hidden activations are never in memory on this path; use the dense one (--path dense) to "
        "look at them");
  }
}

std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path, const LayerFindings* findings) {
  return make_sparse_feed_forward(parameters, activation, path, findings,
                                  runtime_of(parameters.up.device()));
}

std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path, const LayerFindings* findings,
                                                      DeviceRuntime& runtime) {
  require_parameters(parameters, activation, runtime.is_cpu());
  // Weights that may be changed in any mode.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  return runtime.is_cpu() ? make_cpu_feed_forward(parameters, activation, path, findings)
                          : make_gpu_feed_forward(parameters, activation, path, findings, runtime);
}

}  // namespace twell::lm
