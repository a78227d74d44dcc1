// The sparse feed-forward layer of a GPU, on torch.ops.twell.ffn: its neurons lie in the order of
// how many tokens fire them.
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <optional>
#include <utility>

#include "cuda/layer/count_in_flight.h"
#include "cuda/layer/device_screen.h"
#include "cuda/layer/measured_cost.h"
#include "cuda/layer/neuron_popularity.h"
#include "decoder/linear.h"
#include "decoder/sparse_feed_forward.h"
#include "decoder/sparse_operators.h"
#include "decoder/weights.h"
#include "twell/cost.h"

namespace twell::lm {
namespace {

// All weights are the layer's own, since it changes the order of its neurons. The gate lies packed,
// and `rows` [H, D] as stored: on a GPU, where packing pads rows and does not reorder them, a view
// of the same memory.
struct OwnWeights {
  at::Tensor gate, rows;  // of up in a layer without a gate
  at::Tensor up, down;    // [H, D]; up undefined without a gate

  explicit OwnWeights(const FfnParameters& p) : down(neuron_major(p.down.detach())) {
    const at::Tensor first = (p.gated() ? p.gate : p.up).detach().contiguous();
    const std::int64_t hidden = first.size(0), width = first.size(1);
    const bool padded = !packs_without_padding(hidden, width);
    if (p.gated() && !padded) {
      // As one matrix [2H, D]: one GEMM may then multiply both.
      const at::Tensor both = at::cat({first, p.up.detach()});
      rows = both.narrow(0, 0, hidden);
      up = both.narrow(0, hidden, hidden);
    } else {
      rows = first.clone();
      if (p.gated()) up = p.up.detach().clone(at::MemoryFormat::Contiguous);
    }
    gate = rows.is_cpu() || padded ? packed_weight(rows) : rows.unsqueeze(-1);
    if (rows.is_cpu()) return;  // tests play a GPU there
    rows = gate.as_strided({hidden, width}, {packed_depth(WeightType::bf16, width), 1});
  }

  static at::Tensor neuron_major(const at::Tensor& down) {
    const at::Tensor rows = down.t();
    if (rows.is_contiguous()) return rows.clone();
    return down.is_cpu() ? transposed_copy(down) : rows.contiguous();
  }
  // Pairs of a tensor that is in use and what is to be copied into it for neurons in this order:
  // int64 [H] on the device. Nothing is changed.
  std::vector<std::pair<at::Tensor, at::Tensor>> reordered(const at::Tensor& order) const {
    const at::Tensor sorted = rows.index_select(0, order);
    std::vector<std::pair<at::Tensor, at::Tensor>> out{{gate, packed_weight(sorted)},
                                                       {down, down.index_select(0, order)}};
    if (!rows.is_alias_of(gate)) out.emplace_back(rows, sorted);
    if (up.defined()) out.emplace_back(up, up.index_select(0, order));
    return out;
  }
  std::int64_t bytes() const {
    std::size_t sum = gate.nbytes() + down.nbytes();
    if (up.defined()) sum += up.nbytes();
    if (!rows.is_alias_of(gate)) sum += rows.nbytes();
    return static_cast<std::int64_t>(sum);
  }
};

class GpuFeedForward final : public FeedForward {
 public:
  GpuFeedForward(const FfnParameters& p, const ActivationChoice& choice, FfnPath path,
                 const LayerFindings* findings, DeviceRuntime& runtime)
      : choice_(choice),
        activation_(sparse_activation(choice)),
        path_(path),
        runtime_(runtime),
        of_(p),
        shape_{of_.rows.size(1), of_.rows.size(0), p.gated(), dtype_of(of_.rows.scalar_type())},
        popularity_(shape_, runtime),
        screen_(shape_, runtime) {
    if (path == FfnPath::automatic) {
      chooser_.emplace(first_cost(), shape_);
      nnz_.emplace(runtime_,
                   [this](std::int64_t nnz, std::int64_t rows) { chooser_->saw(nnz, rows); });
    }
    if (findings != nullptr) prepare(*findings);
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    require_inference(x);
    if (!chooser_) require_no_hidden(observer);
    const bool hidden_wanted = observer != nullptr && observer->wants_hidden();
    if (x.numel() == 0) return at::empty(x.sizes(), x.options());
    if (popularity_.order_when_arrived([&](const at::Tensor& o) { reorder(o); })) make_screen();
    screen_.look();
    if (nnz_) nnz_->look();
    const bool sampled = chooser_ && chooser_->samples(runtime_.capturing());
    const HotChoice hot = popularity_.hot(x.size(0));
    return hidden_wanted || (chooser_ && chooser_->dense(x.size(0), hot.time))
               ? dense(x, layer, observer, sampled)
               : sparse(x, layer, observer, sampled, hot.count);
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override { return of_.bytes() + screen_.bytes(); }
  std::optional<GateForm> gate_form() const override { return GateForm::packed; }
  const CostModel* cost() const override { return chooser_ ? &chooser_->cost() : nullptr; }
  std::string describe(std::int64_t tokens) const override {
    const std::int64_t hot = popularity_.hot(tokens).count;
    const GateForm form =
        hot == 0 && screen_.serves(tokens) ? GateForm::screened : GateForm::packed;
    std::string out = fmt::format("{}: {}, {}", name_of(path_), io::name_of(choice_.kind),
                                  runtime_.explain_ffn(shape_, form, tokens, hot));
    out += popularity_.ordered()
               ? fmt::format("; neurons ordered by {} tokens", popularity_.tokens())
               : fmt::format("; neurons not ordered, none hot: {} of {} tokens seen",
                             popularity_.tokens(), NeuronPopularity::kTokens);
    if (!screen_.describe().empty()) out += "; " + screen_.describe();
    return chooser_ ? out + "; " + chooser_->describe() : out;
  }

 private:
  SparseOperands operands(std::int64_t hot) const { return {of_.gate, of_.up, of_.down, {}, hot}; }
  // Packing reorders nothing: the gate lies as stored in either form.
  SparseOperands screened_operands(const at::Tensor& screen) const {
    return {of_.rows, of_.up, of_.down, screen, 0};
  }

  // All or nothing: what can fail comes before the first change. In place, so that recordings of
  // steps stay true: they multiply no hot neurons, and go on reading the same memory, all of it in
  // one order at any point of the stream.
  void reorder(const at::Tensor& order) {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    for (const auto& [weight, reordered] : of_.reordered(order)) weight.copy_(reordered);
    dense_.reset();  // may hold copies
  }

  void prepare(const LayerFindings& findings) {
    popularity_.order_by(findings, of_.down, [&](const at::Tensor& o) { reorder(o); });
    screen_.make(findings, [&](const at::Tensor& axis) {
      return screen_weight(of_.rows, axis.to(of_.rows.device()));
    });
  }

  // Of the rows where they are to stay. Recordings made before go on without it.
  void make_screen() {
    const c10::InferenceMode ordinary(false);
    const at::NoGradGuard no_grad;
    screen_.make([&](const at::Tensor& axis) { return screen_weight(of_.rows, axis); },
                 [&](const at::Tensor& screen, const at::Tensor& x) {
                   return std::get<3>(sparse_ffn_stats(x, screened_operands(screen), activation_));
                 });
  }

  // Of a call whose activity was counted.
  void count(const at::Tensor& neuron_nnz, const at::Tensor& x) {
    if (popularity_.saw(neuron_nnz, x.size(0), of_.down)) screen_.saw(x);
  }

  // The inputs of this are not counted.
  CostModel first_cost() {
    if (!of_.down.is_cuda()) return runtime_.estimated_cost(shape_);
    return measured_cost(
        runtime_, shape_,
        {of_.rows, [this](const at::Tensor& x) { dense_.forward(x, 0, nullptr, {}); },
         [this](const at::Tensor& x, float threshold, std::int64_t hot) {
           sparse_ffn(x, operands(hot), {Activation::fat_relu, threshold});
         }});
  }

  at::Tensor sparse(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled,
                    std::int64_t hot) {
    FfnActivity activity{layer, x.size(0), shape_.neurons, FfnPath::sparse, {}, {}, {}};
    const bool observed = observer != nullptr && observer->wants_counts();
    const bool counted = popularity_.wants(x.size(0));
    const at::Tensor screen = hot == 0 ? screen_.take(x.size(0)) : at::Tensor();
    const SparseOperands weights = screen.defined() ? screened_operands(screen) : operands(hot);
    at::Tensor y;
    if (observed || sampled || counted) {
      auto [out, row_nnz, neuron_nnz, candidates] = sparse_ffn_stats(x, weights, activation_);
      y = std::move(out);
      if (sampled) nnz_->send(row_nnz.sum(), x.size(0));
      if (sampled && screen.defined()) screen_.saw_candidates(candidates, x.size(0));
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
    counts.neuron_nnz = popularity_.by_model(counts.neuron_nnz);
    return counts;
  }
  at::Tensor by_model(const at::Tensor& activation) const {
    return popularity_.ordered() && activation.defined()
               ? activation.index_select(1, popularity_.places())
               : activation;
  }

  at::Tensor dense(const at::Tensor& x, std::int64_t layer, FfnObserver* observer, bool sampled) {
    const bool counted = popularity_.wants(x.size(0));
    at::Tensor nnz, neuron_nnz;
    std::function<void(const at::Tensor&)> see_gate;
    if (sampled || counted) {
      see_gate = [&](const at::Tensor& gate) {
        if (counted) neuron_nnz = gate.ne(0).sum(0);
        if (sampled) nnz = counted ? neuron_nnz.sum() : at::count_nonzero(gate);
      };
    }
    at::Tensor y = dense_.forward(x, layer, observer, see_gate, [this](FfnActivity& shown) {
      shown.gate = by_model(shown.gate);
      shown.hidden = by_model(shown.hidden);
      shown.counts = by_model(std::move(shown.counts));
    });
    if (sampled) nnz_->send(nnz, x.size(0));
    if (counted) count(neuron_nnz, x);
    return y;
  }

  FfnParameters parameters() const {
    const bool gated = shape_.gated;
    return {{}, gated ? of_.rows : at::Tensor(), gated ? of_.up : of_.rows, of_.down.t()};
  }

  ActivationChoice choice_;
  ActivationSpec activation_;
  FfnPath path_;
  DeviceRuntime& runtime_;
  OwnWeights of_;
  FfnShape shape_;
  NeuronPopularity popularity_;
  DeviceScreen screen_;
  std::optional<PathChooser> chooser_;                         // automatic only, as is the next
  std::optional<CountInFlight> nnz_;                           // for the chooser
  DenseSide dense_{choice_, [this] { return parameters(); }};  // automatic only
};

}  // namespace

std::unique_ptr<FeedForward> make_gpu_feed_forward(const FfnParameters& parameters,
                                                   const ActivationChoice& activation, FfnPath path,
                                                   const LayerFindings* findings,
                                                   DeviceRuntime& runtime) {
  return std::make_unique<GpuFeedForward>(parameters, activation, path, findings, runtime);
}

}  // namespace twell::lm
