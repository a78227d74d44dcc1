#include "decoder/ggml_layers.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "decoder/cpu_context.h"
#include "decoder/sparse_feed_forward.h"
#include "decoder/sparse_operators.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

// Packed, and given up by the model. With its name in messages.
Linear packed(Linear& from, GgmlPacking how, ParameterSource& source) {
  Linear out = from;
  out.pack(source, how);
  if (!out.weight.tensor.defined()) from.weight.tensor = at::Tensor();
  return out;
}

const char* type_of(const Linear& linear) {
  if (linear.ggml) return name_of(linear.ggml->matrix.format());
  return "f32";
}

class GgmlFeedForward final : public FeedForward {
 public:
  GgmlFeedForward(FfnTensors& from, const ActivationChoice& activation, FfnPath path,
                  GgmlInputs inputs, ParameterSource& source)
      : gated_(from.gate.weight.tensor.defined()),
        activation_(activation),
        path_(path),
        inputs_(inputs) {
    const bool zeros = io::yields_zeros(activation.kind) && path != FfnPath::dense;
    if (gated_) gate_ = packed(from.gate, {GgmlOrder::outputs, inputs}, source);
    up_ = packed(from.up, {GgmlOrder::outputs, inputs}, source);
    down_ = packed(from.down, {zeros ? GgmlOrder::inputs : GgmlOrder::outputs, inputs}, source);
    norm_ = from.inner_norm;
    if (path == FfnPath::sparse && !is_sparse()) {
      throw Error(ErrorKind::unsupported, source.where(from.down.weight),
                  "is in no blocks that have a sparse product, beside gate or up in such; use "
                  "--path auto, or --dtype bf16");
    }
  }

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    require_inference(x);
    const at::NoGradGuard no_grad;
    if (x.numel() == 0) return at::empty(x.sizes(), x.options());
    const at::Tensor in = x.to(at::kFloat);
    at::Tensor gate = gated_ ? gate_(in) : up_(in);
    gate = activate_(gate, activation_);
    const bool shown =
        observer != nullptr && (observer->wants_hidden() || observer->wants_counts());
    at::Tensor hidden = gate;
    if (gated_) {
      const at::Tensor up = activate_up(up_(in), activation_);
      hidden = shown ? gate * up : gate.mul_(up);
    }
    if (observer != nullptr) show_activity(gate, hidden, layer, path(), *observer);
    if (choosing()) choose(hidden);
    return down_(norm_(hidden)).to(x.scalar_type());
  }

  FfnPath path() const override { return is_sparse() ? FfnPath::sparse : FfnPath::dense; }
  std::int64_t own_bytes() const override {
    return gate_.own_bytes() + up_.own_bytes() + down_.own_bytes();
  }
  std::string describe(std::int64_t /*tokens*/) const override {
    std::string out = fmt::format("{}: {}; ", name_of(path_), words_of(activation_));
    if (gated_) out += fmt::format("gate {}, ", type_of(gate_));
    out += fmt::format("up {}, down {}; ", type_of(up_), type_of(down_));
    out += is_sparse() ? "down reads what fired" : "down reads all neurons";
    if (inputs_ == GgmlInputs::as_they_are) out += "; inputs exact";
    if (seen_ > 0) out += fmt::format("; {:.1f} % fired", 100 * recent_);
    return out;
  }

 private:
  bool is_sparse() const { return down_.ggml && down_.ggml->matrix.order() == GgmlOrder::inputs; }
  bool choosing() const { return path_ == FfnPath::automatic && is_sparse(); }

  // Many rows are as fast in either order.
  void choose(const at::Tensor& hidden) {
    constexpr std::int64_t kRecent = 64, kFewRows = 3;
    const std::int64_t rows = hidden.size(0);
    const double share = static_cast<double>(at::count_nonzero(hidden).item<std::int64_t>()) /
                         static_cast<double>(hidden.numel());
    seen_ += rows;
    const double part = static_cast<double>(std::min(rows, kRecent)) /
                        static_cast<double>(std::min(seen_, kRecent));
    recent_ += (share - recent_) * part;
    if (rows <= kFewRows && seen_ >= kRecent &&
        recent_ > sparse_limit(down_.ggml->matrix.format())) {
      down_.ggml->matrix = reordered(down_.ggml->matrix);
    }
  }

  static GgmlMatrix reordered(const GgmlMatrix& weight) {
    const GgmlView of{weight.format(), nullptr, weight.outputs(), weight.inputs()};
    std::vector<std::byte> blocks(static_cast<std::size_t>(of.rows * of.row_bytes()));
    weight.unpack(blocks.data(), &cpu_context());
    return {{of.format, blocks.data(), of.rows, of.cols}, GgmlOrder::outputs, &cpu_context()};
  }

  bool gated_;
  Linear gate_, up_, down_;
  Norm norm_;
  ActivationChoice activation_;
  FfnPath path_;
  GgmlInputs inputs_;
  std::int64_t seen_ = 0;  // rows
  double recent_ = 0;      // share of hidden that is not zero
};

}  // namespace

GgmlView ggml_view(GgmlFormat format, const at::Tensor& blocks) {
  const GgmlTraits traits = traits_of(format);
  return {format, blocks.const_data_ptr(), blocks.size(0),
          blocks.size(1) / traits.bytes * traits.numbers};
}

at::Tensor ggml_look_up(const Parameter& table, const at::Tensor& ids, at::ScalarType dtype) {
  const GgmlView view = ggml_view(*table.format, table.tensor);
  const at::Tensor list = ids.contiguous();
  const std::span rows(list.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(list.numel()));
  std::vector<std::int64_t> shape = ids.sizes().vec();
  shape.push_back(view.cols);
  at::Tensor out = at::empty(shape, at::TensorOptions(at::kFloat));
  float* to = out.mutable_data_ptr<float>();
  for (const std::int64_t row : rows) {
    dequantize(view.format, static_cast<const std::byte*>(view.blocks) + row * view.row_bytes(),
               view.cols / traits_of(view.format).numbers, to);
    to += view.cols;
  }
  return out.to(dtype);
}

at::Tensor ggml_linear(const at::Tensor& x, const GgmlWeight& weight, const at::Tensor& bias) {
  const GgmlMatrix& matrix = weight.matrix;
  const at::Tensor in = x.to(at::kFloat).reshape({-1, matrix.inputs()}).contiguous();
  std::vector<std::int64_t> shape = x.sizes().vec();
  shape.back() = matrix.outputs();
  at::Tensor y = at::empty({in.size(0), matrix.outputs()}, at::TensorOptions(at::kFloat));
  ggml_matmul(cpu_context(), matrix_view(in), matrix,
              MatrixView(y.mutable_data_ptr(), DType::f32, y.size(0), y.size(1)), weight.inputs);
  if (bias.defined()) y.add_(bias);
  return y.view(shape).to(x.scalar_type());
}

std::unique_ptr<FeedForward> make_ggml_feed_forward(FfnTensors& from,
                                                    const ActivationChoice& activation,
                                                    FfnPath path, GgmlInputs inputs,
                                                    ParameterSource& source) {
  return std::make_unique<GgmlFeedForward>(from, activation, path, inputs, source);
}

}  // namespace twell::lm
