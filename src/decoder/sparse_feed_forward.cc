// The feed-forward layer on torch.ops.twell.ffn, of any device.
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>
#include <utility>

#include "choice/device.h"
#include "choice/device_screen.h"
#include "choice/measured_cost.h"
#include "choice/neuron_popularity.h"
#include "choice/path_chooser.h"
#include "choice/scaled_cost.h"
#include "decoder/feed_forward.h"
#include "decoder/linear.h"
#include "decoder/sparse_gate.h"
#include "decoder/sparse_operators.h"
#include "decoder/weights.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorKind::unsupported, "sparse FFN", message);
}

// The gate, or up in a layer without one; what the layer takes is checked.
at::Tensor first_projection(const FfnParameters& p, bool on_cpu) {
  if (p.has_bias()) {
    fail("biases in the feed-forward layer (mlp_bias) are not supported; use --path dense");
  }
  const at::ScalarType dtype = p.up.scalar_type();
  if (dtype != at::kBFloat16 && dtype != (on_cpu ? at::kFloat : at::kHalf)) {
    fail(fmt::format("weights must be bf16 or {}, got {}; use --dtype bf16 or --path dense",
                     on_cpu ? "f32" : "f16 on a GPU", c10::toString(dtype)));
  }
  return (p.gated() ? p.gate : p.up).detach().contiguous();
}

at::Tensor spread_copy(const at::Tensor& matrix) {
  at::Tensor out = allocate_spread_weights(matrix.size(0), matrix.size(1), matrix.scalar_type());
  return out.copy_(matrix);
}

struct Projections {
  at::Tensor first, up;  // the gate, or up in a layer without one; and up beside a gate
};

// On a GPU the layer changes the order of its neurons, so that all weights are its own there. Gate
// and up lie as one matrix [2H, D] where the gate's packed form is its rows: one GEMM may then
// multiply both.
Projections projections_of(const FfnParameters& p, const DeviceRuntime& runtime) {
  const at::Tensor first = first_projection(p, runtime.is_cpu());
  const at::Tensor up = p.gated() ? p.up.detach().contiguous() : at::Tensor();
  if (runtime.is_cpu()) {
    return {first, up.defined() && runtime.spreads_rows() ? spread_copy(up) : up};
  }
  if (!p.gated()) return {first.clone(), up};
  const std::int64_t hidden = first.size(0);
  if (!packs_without_padding(hidden, first.size(1))) return {first.clone(), up.clone()};
  const at::Tensor both = at::cat({first, up});
  return {both.narrow(0, 0, hidden), both.narrow(0, hidden, hidden)};
}

// Neuron-major.
at::Tensor down_of(const FfnParameters& p, const DeviceRuntime& runtime) {
  const at::Tensor neuron_major = p.down.detach().t();
  if (runtime.spreads_rows()) {
    return neuron_major.is_contiguous() ? spread_copy(neuron_major)
                                        : transposed_copy(p.down.detach(), true);
  }
  if (neuron_major.is_contiguous()) return runtime.is_cpu() ? neuron_major : neuron_major.clone();
  return p.down.is_cpu() ? transposed_copy(p.down.detach()) : neuron_major.contiguous();
}

class SparseFeedForward final : public FeedForward {
 public:
  SparseFeedForward(const FfnParameters& p, const Projections& own, const ActivationChoice& choice,
                    FfnPath path, DeviceRuntime& runtime)
      : choice_(choice),
        activation_(sparse_activation(choice)),
        path_(path),
        runtime_(runtime),
        shape_{own.first.size(1), own.first.size(0), p.gated(), dtype_of(own.first.scalar_type())},
        gate_(own.first, runtime.screen_limit(), path == FfnPath::automatic || !runtime.is_cpu()),
        up_(own.up),
        down_(down_of(p, runtime)) {
    if (!down_.is_alias_of(p.down)) own_bytes_ += static_cast<std::int64_t>(down_.nbytes());
    if (p.gated() && !up_.is_alias_of(p.up)) {
      own_bytes_ += static_cast<std::int64_t>(up_.nbytes());
    }
    if (path == FfnPath::automatic) {
      chooser_.emplace(first_cost(), shape_, runtime_);
      to_be_scaled_ =
          runtime.is_cpu() && chooser_->cost().measured_on.empty() && built_in_figures_are_scaled();
    }
    // After the layer was timed: the inputs of that are not counted.
    if (!runtime.is_cpu()) {
      popularity_.emplace(shape_, runtime_);
      screen_.emplace(shape_, runtime_);
    }
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    if (at::GradMode::is_enabled() && x.requires_grad()) {
      fail("this layer is for inference; load the model with trainable = true for gradients");
    }
    const bool hidden_wanted = observer != nullptr && observer->wants_hidden();
    if (hidden_wanted && !chooser_) {
      fail(
          "hidden activations are never in memory on this path; use the dense one (--path dense) "
          "to "
          "look at them");
    }
    if (x.numel() == 0) return at::empty(x.sizes(), x.options());
    // What does not fit is the operator's to name.
    if (x.dim() == 2 && x.size(1) == shape_.width) {
      gate_.decide(x, [&] {
        return std::get<3>(sparse_ffn_stats(x, operands(0), activation_)).item<std::int64_t>();
      });
    }
    if (popularity_) {
      if (popularity_->order_when_arrived([&](const at::Tensor& o) { reorder(o); })) make_screen();
      screen_->look();
    }
    const bool sampled = chooser_ && chooser_->samples();
    const HotNeurons hot = hot_of(x.size(0));
    at::Tensor y = hidden_wanted || (chooser_ && chooser_->dense(x.size(0), hot.time))
                       ? dense(x, layer, observer, sampled)
                       : sparse(x, layer, observer, sampled, hot.count);
    if (std::exchange(to_be_scaled_, false) && x.size(0) >= SparseGate::kFewestRows) {
      scale_cost(x);
    }
    return y;
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override {
    return own_bytes_ + gate_.bytes() + (screen_ ? screen_->bytes() : 0) +
           (dense_ ? dense_->own_bytes() : 0);
  }
  std::optional<GateForm> gate_form() const override {
    if (gate_.form() == SparseGate::Form::undecided) return std::nullopt;
    return gate_.form() == SparseGate::Form::screened ? GateForm::screened : GateForm::packed;
  }
  const CostModel* cost() const override { return chooser_ ? &chooser_->cost() : nullptr; }
  std::string describe(std::int64_t tokens) const override {
    const bool screened = gate_.form() == SparseGate::Form::screened;
    const std::int64_t hot = hot_of(tokens).count;
    const GateForm form = screened || (screen_ && hot == 0 && screen_->serves(tokens))
                              ? GateForm::screened
                              : GateForm::packed;
    std::string out = fmt::format("{}: {}, {}", name_of(path_), io::name_of(choice_.kind),
                                  runtime_.explain_ffn(shape_, form, tokens, hot));
    if (screened) out += fmt::format("; the screen left {:.1f} %", 100 * gate_.share());
    if (gate_.form() == SparseGate::Form::undecided)
      out += "; its first inputs choose the gate's form";
    if (popularity_) {
      out += popularity_->ordered()
                 ? fmt::format("; neurons ordered by {} tokens", popularity_->tokens())
                 : fmt::format("; neurons not ordered, none hot: {} of {} tokens seen",
                               popularity_->tokens(), NeuronPopularity::kTokens);
    }
    if (screen_ && !screen_->describe().empty()) out += "; " + screen_->describe();
    if (chooser_) {
      const auto density = chooser_->density();
      out += "; dense GEMMs where they are faster, ";
      out += density ? fmt::format("last density {:.2f} %", *density * 100)
                     : std::string("no density seen yet");
      out += "; cost: " + chooser_->cost().source();
    }
    return out;
  }

 private:
  SparseOperands operands(std::int64_t hot) const {
    return {gate_.operand(), up_, down_, gate_.screen(), hot};
  }
  // On a GPU, where packing reorders nothing: the gate lies as stored in either form.
  SparseOperands screened_operands(const at::Tensor& screen) const {
    return {gate_.rows(), up_, down_, screen, 0};
  }
  HotNeurons hot_of(std::int64_t rows) const {
    return popularity_ ? popularity_->hot(rows) : HotNeurons{};
  }

  // All or nothing: what can fail comes before the first change. In place, so that recordings of
  // steps stay true: they multiply no hot neurons, and go on reading the same memory, all of it in
  // one order at any point of the stream.
  void reorder(const at::Tensor& order) {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    auto changes = gate_.reordered(order);
    if (shape_.gated) changes.emplace_back(up_, up_.index_select(0, order));
    changes.emplace_back(down_, down_.index_select(0, order));
    for (const auto& [weight, reordered] : changes) weight.copy_(reordered);
    dense_.reset();  // may hold copies
  }

  // Of the rows where they are to stay. Recordings made before go on without it.
  void make_screen() {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    screen_->make([&](const at::Tensor& axis) { return screen_weight(gate_.rows(), axis); },
                  [&](const at::Tensor& screen, const at::Tensor& x) {
                    return std::get<3>(sparse_ffn_stats(x, screened_operands(screen), activation_));
                  });
  }

  // Of a call whose activity was counted.
  void count(const at::Tensor& neuron_nnz, const at::Tensor& x) {
    if (popularity_ && popularity_->saw(neuron_nnz, x.size(0), down_)) screen_->saw(x);
  }

  CostModel first_cost() {
    if (runtime_.is_cpu()) return load_cost_model(default_cpu_tier(), at::get_num_threads());
    if (!down_.is_cuda()) return runtime_.estimated_cost(shape_);
    return measured_cost(
        runtime_, shape_,
        {gate_.rows(), [this](const at::Tensor& x) { dense(x, 0, nullptr, false); },
         [this](const at::Tensor& x, float threshold, std::int64_t hot) {
           sparse_ffn(x, operands(hot), {Activation::fat_relu, threshold});
         }});
  }

  // By calls on rows of x, inputs like those to come. The dense layer is not kept: it would double
  // the weights of a layer that may never take that path.
  void scale_cost(const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    std::unique_ptr<FeedForward> dense;
    const auto time = [&](std::int64_t tokens) {
      if (!dense) dense = make_fastest_dense_feed_forward(parameters(), choice_);
      const at::Tensor rows = x.repeat({(tokens + x.size(0) - 1) / x.size(0), 1});
      const auto batch = [&](std::int64_t i) {
        return rows.narrow(0, i % (rows.size(0) / tokens) * tokens, tokens);
      };
      return time_in_turns(
          tokens, [&](std::int64_t i) { dense->forward(batch(i), 0, nullptr); },
          [&](std::int64_t i) { sparse_ffn(batch(i), operands(0), activation_); });
    };
    chooser_->replace_cost([&](double density) {
      return scaled_cost(default_cpu_tier(), at::get_num_threads(), shape_, density, time);
    });
  }

  at::Tensor sparse(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled,
                    std::int64_t hot) {
    FfnActivity activity{layer, x.size(0), shape_.hidden, FfnPath::sparse, {}, {}, {}};
    const bool observed = observer != nullptr && observer->wants_counts();
    const bool counted = popularity_ && popularity_->wants(x.size(0));
    const at::Tensor screen = screen_ && hot == 0 ? screen_->take(x.size(0)) : at::Tensor();
    const SparseOperands weights = screen.defined() ? screened_operands(screen) : operands(hot);
    at::Tensor y;
    if (observed || sampled || counted) {
      auto [out, row_nnz, neuron_nnz, candidates] = sparse_ffn_stats(x, weights, activation_);
      y = std::move(out);
      if (sampled) chooser_->saw(row_nnz.sum(), x.size(0));
      if (sampled && screen.defined()) screen_->saw_candidates(candidates, x.size(0));
      count(neuron_nnz, x);
      if (observed) activity.counts = by_model(counts_of(row_nnz, neuron_nnz));
    } else {
      y = sparse_ffn(x, weights, activation_);
    }
    if (observer != nullptr) observer->observe(activity);
    return y;
  }

  // What an observer is shown has the model's own order of neurons.
  FfnCounts by_model(FfnCounts counts) const {
    if (popularity_) counts.neuron_nnz = popularity_->by_model(counts.neuron_nnz);
    return counts;
  }
  at::Tensor by_model(const at::Tensor& activation) const {
    return popularity_ && popularity_->ordered() && activation.defined()
               ? activation.index_select(1, popularity_->places())
               : activation;
  }

  // Looks at the gate of a dense call, and shows an observer what it wants to see.
  class Sampler final : public FfnObserver {
   public:
    Sampler(const SparseFeedForward& layer, FfnObserver* outer, bool sampled, bool counted)
        : layer_(layer), outer_(outer), sampled_(sampled), counted_(counted) {}
    bool wants_hidden() const override {
      return sampled_ || counted_ || (outer_ != nullptr && outer_->wants_hidden());
    }
    bool wants_counts() const override { return outer_ != nullptr && outer_->wants_counts(); }
    void observe(const FfnActivity& activity) override {
      if (counted_) neuron_nnz = activity.gate.ne(0).sum(0);
      if (sampled_) nnz = counted_ ? neuron_nnz.sum() : at::count_nonzero(activity.gate);
      if (outer_ == nullptr) return;
      FfnActivity shown = activity;
      const bool hidden = outer_->wants_hidden();
      shown.gate = hidden ? layer_.by_model(activity.gate) : at::Tensor();
      shown.hidden = hidden ? layer_.by_model(activity.hidden) : at::Tensor();
      if (outer_->wants_counts()) shown.counts = layer_.by_model(activity.counts);
      outer_->observe(shown);
    }
    at::Tensor nnz, neuron_nnz;  // int64 [] and [H], where sampled and counted

   private:
    const SparseFeedForward& layer_;
    FfnObserver* outer_;
    bool sampled_, counted_;
  };

  // On the gate as stored (on a GPU where it lies packed), and on weights reordered for oneDNN from
  // the first time on that this path is taken for its speed.
  at::Tensor dense(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled) {
    const bool counted = popularity_ && popularity_->wants(x.size(0));
    Sampler sampler(*this, observer, sampled, counted);
    const bool for_speed = observer == nullptr || !observer->wants_hidden();
    if (!dense_ && for_speed) dense_ = make_fastest_dense_feed_forward(parameters(), choice_);
    at::Tensor y =
        dense_ ? dense_->forward(x, layer, &sampler)
               : make_dense_feed_forward(parameters(), choice_)->forward(x, layer, &sampler);
    if (sampled) chooser_->saw(sampler.nnz, x.size(0));
    if (counted) count(sampler.neuron_nnz, x);
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
  std::optional<NeuronPopularity> popularity_;  // on a GPU, as is the next
  std::optional<DeviceScreen> screen_;
  std::optional<PathChooser> chooser_;  // automatic only
  bool to_be_scaled_ = false;           // its cost, by the first call
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
  // Weights that may be changed in any mode.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_grad;
  return std::make_unique<SparseFeedForward>(parameters, projections_of(parameters, runtime),
                                             activation, path, runtime);
}

}  // namespace twell::lm
