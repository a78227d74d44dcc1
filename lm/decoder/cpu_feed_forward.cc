// The sparse feed-forward layer of a CPU: twell::Layer on the model's tensors.
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <optional>
#include <utility>

#include "decoder/cpu_context.h"
#include "decoder/feed_forward.h"
#include "decoder/projections.h"
#include "decoder/sparse_feed_forward.h"
#include "decoder/sparse_operators.h"
#include "device/calibration.h"
#include "twell/layer.h"

namespace twell::lm {
namespace {

std::span<const float> entries(const at::Tensor& vector) {
  if (!vector.defined()) return {};
  return {vector.const_data_ptr<float>(), static_cast<std::size_t>(vector.numel())};
}

// A view of libtwell's as a tensor, which does not own its memory.
at::Tensor tensor_of(ConstMatrixView view) {
  void* const data = const_cast<void*>(view.data);  // NOLINT: PyTorch has no tensors of constants
  return at::from_blob(data, {view.rows, view.cols}, {view.row_stride, 1},
                       at::TensorOptions(view.dtype == DType::bf16 ? at::kBFloat16 : at::kFloat));
}

// The parameters as twell::Layer takes them: down neuron-major where it lies so, and vectors in
// f32.
struct LayerTensors {
  at::Tensor gate, up, down;
  bool neuron_major;
  at::ScalarType dtype;  // of x and y
  FormVectors<at::Tensor> vectors;

  explicit LayerTensors(const FfnParameters& parameters)
      : neuron_major(parameters.down.t().is_contiguous()), dtype(parameters.dtype_of_x()) {
    const Projections p(parameters);
    gate = p.first.detach().contiguous();
    if (p.up.defined()) up = p.up.detach().contiguous();
    const at::Tensor stored = p.down.detach();
    down = neuron_major ? stored.t() : stored.contiguous();
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
      if (p[i].defined()) vectors[i] = p[i].detach().to(at::kFloat).contiguous();
    }
  }
  StoredWeights weights() const {
    StoredWeights out{weight_view(gate), {}, weight_view(down), neuron_major};
    if (up.defined()) out.up = weight_view(up);
    return out;
  }
  FfnForm form(const ActivationChoice& activation) const {
    FfnForm out(sparse_activation(activation));
    out.up = activation.up;
    if (activation.norm_eps) out.norm_epsilon = static_cast<float>(*activation.norm_eps);
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) out[i] = entries(vectors[i]);
    return out;
  }
};

// A dense layer of PyTorch's as a dense variant of twell::Layer.
DenseFfn form_of(std::shared_ptr<FeedForward> dense) {
  struct Counting final : FfnObserver {
    bool wants_counts() const override { return true; }
    void observe(const FfnActivity& activity) override { counts = activity.counts; }
    FfnCounts counts;
  };
  return [dense](Context&, ConstMatrixView x, MatrixView y, FfnCounts* counts) {
    const at::NoGradGuard no_grad;
    Counting seen;
    tensor_of(y).copy_(dense->forward(tensor_of(x), 0, counts != nullptr ? &seen : nullptr));
    if (counts != nullptr) *counts = std::move(seen.counts);
  };
}

class CpuFeedForward final : public FeedForward {
 public:
  CpuFeedForward(const FfnParameters& p, const ActivationChoice& choice, FfnPath path,
                 const LayerFindings* findings)
      : choice_(choice),
        path_(path),
        coded_(p.has_codes()),
        of_(p),
        layer_(cpu_context(), of_.weights(), of_.form(choice), options()) {
    // What the layer has copies of goes.
    if (of_.up.defined() && layer_.up()->data != of_.up.const_data_ptr()) of_.up = at::Tensor();
    if (layer_.down().data != of_.down.const_data_ptr()) of_.down = at::Tensor();
    if (findings != nullptr) layer_.prepare(*findings);
    free_gate();
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    require_inference(x);
    // PyTorch does not multiply codes.
    if (path_ != FfnPath::automatic || coded_) require_no_hidden(observer);
    const bool hidden_wanted = observer != nullptr && observer->wants_hidden();
    if (x.numel() == 0) return at::empty(x.sizes(), x.options());
    const at::Tensor rows = x.contiguous();
    if (hidden_wanted) {
      if (!layer_.block()) layer_.prepare(cpu_context(), matrix_view(rows));
      return make_dense_feed_forward(parameters(), choice_)->forward(rows, layer, observer);
    }
    const bool counts_wanted = observer != nullptr && observer->wants_counts();
    at::Tensor y = at::empty(x.sizes(), x.options());
    const MatrixView out(y.mutable_data_ptr(), layer_.shape().dtype, y.size(0), y.size(1));
    FfnCounts counts;
    const LayerPath path =
        layer_.run(cpu_context(), matrix_view(rows), out, counts_wanted ? &counts : nullptr);
    free_gate();
    if (observer != nullptr) {
      const bool dense = path == LayerPath::dense;
      observer->observe({layer,
                         x.size(0),
                         layer_.shape().neurons,
                         dense ? FfnPath::dense : FfnPath::sparse,
                         {},
                         {},
                         std::move(counts)});
    }
    return y;
  }

  FfnPath path() const override { return path_; }
  std::int64_t own_bytes() const override {
    const std::size_t gate = of_.gate.defined() ? of_.gate.nbytes() : 0;
    const std::shared_ptr<FeedForward> dense = dense_.lock();
    return layer_.own_bytes() + static_cast<std::int64_t>(gate) + (dense ? dense->own_bytes() : 0);
  }
  bool keeps(const at::Tensor& weight) const override {
    const auto is = [&](const at::Tensor& own) { return own.defined() && own.is_alias_of(weight); };
    return is(of_.up) || is(of_.down);
  }
  std::optional<GateForm> gate_form() const override {
    const std::optional<LayerBlock> block = layer_.block();
    return block ? std::optional(block->gate_form()) : std::nullopt;
  }
  const LayerFindings* findings() const override {
    const std::optional<LayerBlock> block = layer_.block();
    return block ? block->findings() : nullptr;  // the layer's own block has them too
  }
  const CostModel* cost() const override {
    return layer_.chooser() == nullptr ? nullptr : &layer_.chooser()->cost();
  }
  std::string describe(std::int64_t tokens) const override {
    return fmt::format("{}: {}, {}", name_of(path_), words_of(choice_),
                       layer_.describe(cpu_context(), tokens));
  }

 private:
  LayerOptions options() {
    LayerOptions out;
    out.block.dtype = dtype_of(of_.dtype);
    if (path_ != FfnPath::automatic) {
      out.path = LayerPath::sparse;
      return out;
    }
    const CpuTier tier = cpu_context().tier();
    // With AMX oneDNN's products are those that were measured. It reads the gate as stored.
    if (tier == CpuTier::amx && of_.dtype == at::kBFloat16 && !coded_) {
      keeps_gate_ = true;
      out.make_dense = [this] {
        std::shared_ptr<FeedForward> dense = make_dense_feed_forward(parameters(), choice_, true);
        dense_ = dense;
        return form_of(std::move(dense));
      };
    }
    CostModel cost = load_cost_model(tier, cpu_context().threads());
    if (!cost.measured_on.empty() || !built_in_figures_are_scaled()) out.cost = std::move(cost);
    return out;
  }
  void free_gate() {
    if (!layer_.reads_gate() && !keeps_gate_) of_.gate = at::Tensor();
  }
  // As stored: the layer may have a packed one alone.
  at::Tensor gate() const {
    if (of_.gate.defined()) return of_.gate;
    const FfnShape& shape = layer_.shape();
    at::Tensor out = at::empty({shape.neurons, shape.width}, at::TensorOptions(of_.dtype));
    unpack_weight(layer_.block()->weights().gate,
                  MatrixView(out.mutable_data_ptr(), shape.dtype, shape.neurons, shape.width));
    return out;
  }

  // For observers, who look at what PyTorch computes.
  FfnParameters parameters() const {
    FfnParameters out;
    out.gate = gate();
    out.down = tensor_of(layer_.down().matrix()).t();
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
      if (of_.vectors[i].defined()) out[i] = of_.vectors[i].to(of_.dtype);
    }
    if (layer_.shape().gated) {
      out.up = tensor_of(layer_.up()->matrix());
    } else {
      std::swap(out.gate, out.up);
      std::swap(out.gate_bias, out.up_bias);
    }
    return out;
  }

  ActivationChoice choice_;
  FfnPath path_;
  bool coded_;
  LayerTensors of_;  // as far as the layer reads them in place
  bool keeps_gate_ = false;
  std::weak_ptr<FeedForward> dense_;  // oneDNN's, while the layer keeps it
  Layer layer_;
};

}  // namespace

std::unique_ptr<FeedForward> make_cpu_feed_forward(const FfnParameters& parameters,
                                                   const ActivationChoice& activation, FfnPath path,
                                                   const LayerFindings* findings) {
  return std::make_unique<CpuFeedForward>(parameters, activation, path, findings);
}

}  // namespace twell::lm
