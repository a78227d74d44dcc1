// The feed-forward layer on torch.ops.twell.ffn, of any device.
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>

#include "models/device.h"
#include "models/feed_forward.h"
#include "models/measured_cost.h"
#include "models/path_chooser.h"
#include "models/sparse_gate.h"
#include "models/sparse_operators.h"
#include "models/weights.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::unsupported, "sparse FFN", message);
}

DType dtype_of(at::ScalarType type) {
  return type == at::kFloat ? DType::f32 : type == at::kHalf ? DType::f16 : DType::bf16;
}

// The gate, or up in a layer without one; what the layer takes is checked.
at::Tensor first_projection(const FfnParameters& p, bool on_cpu) {
  if (p.has_bias()) {
    fail("biases in the feed-forward layer (mlp_bias) are not supported; use --ffn dense");
  }
  const at::ScalarType dtype = p.up.scalar_type();
  if (dtype != at::kBFloat16 && dtype != (on_cpu ? at::kFloat : at::kHalf)) {
    fail(fmt::format("weights must be bf16 or {}, got {}; use --dtype bf16 or --ffn dense",
                     on_cpu ? "f32" : "f16 on a GPU", c10::toString(dtype)));
  }
  return (p.gated() ? p.gate : p.up).detach().contiguous();
}

class SparseFeedForward final : public FeedForward {
 public:
  SparseFeedForward(const FfnParameters& p, const ActivationChoice& choice, FfnPath path,
                    DeviceRuntime& runtime)
      : choice_(choice),
        activation_(sparse_activation(choice)),
        path_(path),
        runtime_(runtime),
        gate_(first_projection(p, runtime.is_cpu()), runtime.screen_limit(),
              path == FfnPath::automatic) {
    const at::NoGradGuard no_grad;
    const at::Tensor& first = p.gated() ? p.gate : p.up;
    shape_ = {first.size(1), first.size(0), p.gated(), dtype_of(first.scalar_type())};
    const at::Tensor neuron_major = p.down.detach().t();
    down_ = neuron_major.is_contiguous() ? neuron_major
            : p.down.is_cpu()            ? transposed_copy(p.down.detach())
                                         : neuron_major.contiguous();
    if (!down_.is_alias_of(p.down)) own_bytes_ += static_cast<std::int64_t>(down_.nbytes());
    if (p.gated()) {
      up_ = p.up.detach().contiguous();
      if (!up_.is_alias_of(p.up)) own_bytes_ += static_cast<std::int64_t>(up_.nbytes());
    }
    if (path == FfnPath::automatic) chooser_.emplace(cost(), shape_, runtime_);
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    if (at::GradMode::is_enabled() && x.requires_grad()) {
      fail("this layer is for inference; load the model with trainable = true for gradients");
    }
    const bool hidden_wanted = observer != nullptr && observer->wants_hidden();
    if (hidden_wanted && !chooser_) {
      fail(
          "hidden activations are never in memory on this path; use the dense one (--ffn dense) to "
          "look at them");
    }
    if (x.numel() == 0) return at::empty(x.sizes(), x.options());
    // What does not fit is the operator's to name.
    if (x.dim() == 2 && x.size(1) == shape_.width) {
      gate_.decide(x, [&] {
        return std::get<3>(sparse_ffn_stats(x, operands(), activation_)).item<std::int64_t>();
      });
    }
    const bool sampled = chooser_ && chooser_->samples();
    if (hidden_wanted || (chooser_ && chooser_->dense(x.size(0)))) {
      return dense(x, layer, observer, sampled);
    }
    return sparse(x, layer, observer, sampled);
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override {
    return own_bytes_ + gate_.bytes() + (dense_ ? dense_->own_bytes() : 0);
  }
  std::string describe(std::int64_t tokens) const override {
    const bool screened = gate_.form() == SparseGate::Form::screened;
    std::string out = fmt::format(
        "{}: {}, {}", name_of(path_), io::name_of(choice_.kind),
        runtime_.explain_ffn(shape_, screened ? GateForm::screened : GateForm::packed, tokens));
    if (screened) out += fmt::format("; the screen left {:.1f} %", 100 * gate_.share());
    if (gate_.form() == SparseGate::Form::undecided)
      out += "; its first inputs choose the gate's form";
    if (chooser_) {
      const auto density = chooser_->density();
      out += "; dense GEMMs where they are faster, ";
      out += density ? fmt::format("last density {:.2f} %", *density * 100)
                     : std::string("no density seen yet");
    }
    return out;
  }

 private:
  SparseOperands operands() const { return {gate_.operand(), up_, down_, gate_.screen(), 0}; }

  CostModel cost() {
    if (runtime_.is_cpu()) return load_cost_model(default_cpu_tier(), at::get_num_threads());
    if (!down_.is_cuda()) return runtime_.estimated_cost(shape_);
    return measured_cost(
        runtime_, shape_,
        {gate_.rows(), [this](const at::Tensor& x) { dense(x, 0, nullptr, false); },
         [this](const at::Tensor& x, float threshold) {
           sparse_ffn(x, operands(), {Activation::fat_relu, threshold});
         }});
  }

  at::Tensor sparse(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled) {
    FfnActivity activity{layer, x.size(0), shape_.hidden, FfnPath::sparse, {}, {}, {}};
    const bool observed = observer != nullptr && observer->wants_counts();
    at::Tensor y;
    if (observed || sampled) {
      auto [out, row_nnz, neuron_nnz, candidates] = sparse_ffn_stats(x, operands(), activation_);
      y = std::move(out);
      if (sampled) chooser_->saw(row_nnz.sum(), x.size(0));
      if (observed) activity.counts = counts_of(row_nnz, neuron_nnz);
    } else {
      y = sparse_ffn(x, operands(), activation_);
    }
    if (observer != nullptr) observer->observe(activity);
    return y;
  }

  // On the gate as stored (on a GPU where it lies packed), and on weights reordered for oneDNN from
  // the first time on that this path is taken for its speed.
  at::Tensor dense(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled) {
    struct Sampler final : FfnObserver {
      bool wants_hidden() const override {
        return nnz != nullptr || (outer != nullptr && outer->wants_hidden());
      }
      bool wants_counts() const override { return outer != nullptr && outer->wants_counts(); }
      void observe(const FfnActivity& activity) override {
        if (nnz != nullptr) *nnz = at::count_nonzero(activity.gate);
        if (outer == nullptr) return;
        FfnActivity shown = activity;
        if (!outer->wants_hidden()) shown.gate = shown.hidden = at::Tensor();
        outer->observe(shown);
      }
      FfnObserver* outer = nullptr;
      at::Tensor* nnz = nullptr;
    } sampler;
    at::Tensor nnz;
    sampler.outer = observer;
    if (sampled) sampler.nnz = &nnz;
    const bool for_speed = observer == nullptr || !observer->wants_hidden();
    if (!dense_ && for_speed) dense_ = make_fastest_dense_feed_forward(parameters(), choice_);
    at::Tensor y =
        dense_ ? dense_->forward(x, layer, &sampler)
               : make_dense_feed_forward(parameters(), choice_)->forward(x, layer, &sampler);
    if (sampled) chooser_->saw(nnz, x.size(0));
    return y;
  }

  FfnParameters parameters() const {
    const bool gated = shape_.gated;
    return {gated ? gate_.rows() : at::Tensor(), gated ? up_ : gate_.rows(), down_.t(), {}, {}, {}};
  }

  ActivationChoice choice_;
  ActivationSpec activation_;
  FfnPath path_;
  DeviceRuntime& runtime_;
  FfnShape shape_;
  SparseGate gate_;
  at::Tensor up_, down_;  // [H, D]; up undefined without a gate
  std::int64_t own_bytes_ = 0;
  std::optional<PathChooser> chooser_;  // automatic only
  std::unique_ptr<FeedForward> dense_;  // automatic only, once it was needed
};

}  // namespace

std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path) {
  return make_sparse_feed_forward(parameters, activation, path, runtime_of(parameters.up.device()));
}

std::unique_ptr<FeedForward> make_sparse_feed_forward(const FfnParameters& parameters,
                                                      const ActivationChoice& activation,
                                                      FfnPath path, DeviceRuntime& runtime) {
  return std::make_unique<SparseFeedForward>(parameters, activation, path, runtime);
}

}  // namespace twell::lm
