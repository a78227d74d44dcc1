#include "measure/train_bench.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>

#include "decoder/linear.h"
#include "decoder/sparse_operators.h"
#include "measure/layer_timer.h"
#include "twell/train.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

struct Gradients : FormVectors<at::Tensor> {
  at::Tensor dx, gate, up, down;  // down [H, D]
};

// Of leaves, of which one is down or down_t.
Gradients gradients_of(const at::Tensor& x, const SyntheticLayer& layer) {
  const SyntheticLayer d = layer.map([](const at::Tensor& t) { return t.grad(); });
  return {d, x.grad(), d.gate, d.up, d.down.defined() ? d.down.t() : d.down_t};
}

// What a user of PyTorch runs at its best: autograd over bf16 GEMMs, or f32 ones where there are
// none of bf16 (decoder/linear.h), gate and up as one or as two.
class DenseTraining {
 public:
  DenseTraining(const TrainCase& c, bool joined)
      : activation_(c.activation), joined_(joined && c.layer.up.defined()) {
    const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
    leaves_ = c.layer;
    if (joined_) {
      leaves_.gate = at::cat({c.layer.gate, c.layer.up});
      if (c.shape.biases) leaves_.gate_bias = at::cat({c.layer.gate_bias, c.layer.up_bias});
      leaves_.up = leaves_.up_bias = at::Tensor();
    }
    leaves_.down_t.reset();
    leaves_ = leaves_.map(leaf);
    x_ = leaf(c.x);
  }

  const char* name() const { return joined_ ? "autograd, gate and up joined" : "autograd"; }

  void step(const at::Tensor& dy) {
    const auto forget = [](const at::Tensor& t) {
      t.mutable_grad().reset();
      return t;
    };
    leaves_.map(forget);
    forget(x_);
    at::Tensor g = linear_of(x_, leaves_.gate, leaves_.gate_bias);
    at::Tensor u;
    if (joined_) {
      const std::int64_t h = g.size(1) / 2;
      u = g.narrow(1, h, h);
      g = g.narrow(1, 0, h);
    } else if (leaves_.up.defined()) {
      u = linear_of(x_, leaves_.up, leaves_.up_bias);
    }
    g = activate(g, activation_);
    linear_of(u.defined() ? g * u : g, leaves_.down, leaves_.down_bias).backward(dy);
  }

  Gradients gradients() const {
    Gradients out = gradients_of(x_, leaves_);
    if (joined_) {
      const std::int64_t h = out.gate.size(0) / 2;
      const auto part = [h](at::Tensor& first, at::Tensor& second) {
        if (!first.defined()) return;
        second = first.narrow(0, h, h);
        first = first.narrow(0, 0, h);
      };
      part(out.gate, out.up);
      part(out.gate_bias, out.up_bias);
    }
    return out;
  }

 private:
  ActivationChoice activation_;
  bool joined_;
  SyntheticLayer leaves_;
  at::Tensor x_;
};

MatrixView mutable_view(const at::Tensor& t) {
  const ConstMatrixView view = matrix_view(t);
  return {t.mutable_data_ptr(), view.dtype, view.rows, view.cols, view.row_stride};
}

// Of an f32 vector; none where it is undefined.
std::span<float> entries(const at::Tensor& t) {
  if (!t.defined()) return {};
  return {t.mutable_data_ptr<float>(), static_cast<std::size_t>(t.numel())};
}

class SparseTraining {
 public:
  explicit SparseTraining(const TrainCase& c)
      : context_({.threads = at::get_num_threads(), .tier = {}}),
        layer_(c.layer),
        x_(c.x),
        form_(sparse_activation(c.activation)),
        y_(at::empty_like(c.x)),
        axis_(c.x.to(at::kFloat).mean(0)) {
    const SyntheticLayer like = c.layer.map([](const at::Tensor& t) {
      return at::empty_like(t, t.dim() == 1 ? at::kFloat : t.scalar_type());
    });
    gradients_ = {like, at::empty_like(c.x), like.gate, like.up, like.down_t};
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
      if (c.layer[i].defined()) vectors_[i] = c.layer[i].to(at::kFloat);
      form_[i] = entries(vectors_[i]);
    }
    // The form of the gate by what the screen leaves, as a layer decides it.
    const double limit = tuning_of(context_.tier()).screen_limit;
    if (limit == 0) return;
    screened_ = true;
    forward();
    const double all = static_cast<double>(c.x.size(0) * c.shape.neurons);
    screened_ = static_cast<double>(counts_.candidates) <= limit * all;
  }

  void forward() {
    const Prepared operands = prepared();
    ffn_forward(context_, matrix_view(x_), operands.weights, form_, mutable_view(y_), pattern_,
                &counts_);
  }
  void backward(const at::Tensor& dy) {
    FfnBackward in = {matrix_view(dy),
                      matrix_view(x_),
                      matrix_view(layer_.gate),
                      {},
                      matrix_view(layer_.down_t),
                      pattern_.view(),
                      form_};
    FfnGradients out = {mutable_view(gradients_.dx),
                        mutable_view(gradients_.gate),
                        {},
                        mutable_view(gradients_.down)};
    if (layer_.up.defined()) {
      in.up = matrix_view(layer_.up);
      out.up = mutable_view(gradients_.up);
    }
    for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
      out.vectors[i] = entries(gradients_[i]);
    }
    ffn_backward(context_, in, out);
  }

  std::string describe() const {
    const ConstMatrixView x = matrix_view(x_);
    const FfnPlan plan = plan_ffn(context_, x.rows, prepared().weights.shape(x.dtype),
                                  screened_ ? GateForm::screened : GateForm::packed);
    return plan.to_string();
  }
  const Gradients& gradients() const { return gradients_; }
  const FfnCounts& counts() const { return counts_; }
  std::size_t saved_bytes() const { return pattern_.bytes(); }

 private:
  // Prepared in every call: in training, weights are new in every step.
  struct Prepared {
    FfnWeights weights;
    std::optional<PackedWeight> packed;
    std::optional<Screen> screen;
  };
  Prepared prepared() const {
    const ConstMatrixView gate = matrix_view(layer_.gate);
    Prepared out{{gate, {}, matrix_view(layer_.down_t)}, {}, {}};
    if (layer_.up.defined()) out.weights.up = matrix_view(layer_.up);
    if (screened_) {
      out.weights.screen = out.screen.emplace(gate, axis_.const_data_ptr<float>()).view();
    } else {
      out.weights.gate = out.packed.emplace(gate).view();
    }
    return out;
  }

  Context context_;
  const SyntheticLayer& layer_;
  at::Tensor x_;
  FfnForm form_;
  FormVectors<at::Tensor> vectors_;  // f32
  at::Tensor y_, axis_;
  Gradients gradients_;
  FfnPattern pattern_;
  FfnCounts counts_;
  bool screened_ = false;
};

// The first 64 rows: fp64 takes its time.
TrainCase small_case(const TrainCase& c) {
  TrainCase out = c;
  out.x = c.x.slice(0, 0, 64);
  return out;
}

// Gradients in fp64, nothing rounded in between.
Gradients reference_gradients(const TrainCase& c, const at::Tensor& dy) {
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble).detach().requires_grad_(); };
  const at::Tensor x = wide(c.x);
  SyntheticLayer layer = c.layer;
  layer.down.reset();
  layer = layer.map(wide);
  make_dense_feed_forward(parameters_of(layer), c.activation)
      ->forward(x, 0, nullptr)
      .backward(dy.to(at::kDouble));
  return gradients_of(x, layer);
}

// The largest root mean square error of any gradient, relative to that gradient's own size.
double error_of(const Gradients& got, const Gradients& exact) {
  double worst = 0;
  const auto add = [&worst](const at::Tensor& a, const at::Tensor& b) {
    if (!b.defined()) return;
    const double error = (a.to(at::kDouble) - b).norm().item<double>();
    worst = std::max(worst, error / std::max(b.norm().item<double>(), 1e-300));
  };
  add(got.dx, exact.dx);
  add(got.gate, exact.gate);
  add(got.up, exact.up);
  add(got.down, exact.down);
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) add(got[i], exact[i]);
  return worst;
}

}  // namespace

nlohmann::json run_train_case(const TrainCase& c, const std::function<void()>& tick) {
  const c10::InferenceMode normal_tensors(false);
  const at::AutoGradMode with_gradients(true);
  const at::Tensor dy = at::randn(c.x.sizes(), at::TensorOptions(at::kFloat)).to(c.x.scalar_type());
  SparseTraining sparse(c);
  std::array<DenseTraining, 2> forms = {DenseTraining(c, false), DenseTraining(c, true)};
  MeasureOptions quick = c.measure;
  quick.repeats = 3;
  const auto tried = measure_in_turns(
      {[&](std::int64_t) { forms[0].step(dy); }, [&](std::int64_t) { forms[1].step(dy); }}, quick);
  DenseTraining& dense = forms[tried[1].median_us < tried[0].median_us ? 1 : 0];
  tick();
  double forward_us = 0;
  const auto timings = measure_in_turns({[&](std::int64_t) { dense.step(dy); },
                                         [&](std::int64_t) {
                                           sparse.forward();
                                           sparse.backward(dy);
                                         }},
                                        c.measure, tick);
  forward_us = measure_in_turns({[&](std::int64_t) { sparse.forward(); }}, quick)[0].median_us;
  std::vector<double> ratios;
  for (std::size_t r = 0; r < timings[0].runs_us.size(); ++r) {
    ratios.push_back(timings[0].runs_us[r] / timings[1].runs_us[r]);
  }
  const FfnCounts& counts = sparse.counts();
  const auto nnz = static_cast<double>(counts.nnz());
  const auto rows = static_cast<double>(c.x.size(0));
  const TrainCase few = small_case(c);
  const at::Tensor few_dy = dy.slice(0, 0, 64);
  const Gradients exact = reference_gradients(few, few_dy);
  SparseTraining few_sparse(few);
  few_sparse.forward();
  few_sparse.backward(few_dy);
  DenseTraining few_dense(few, false);
  few_dense.step(few_dy);
  const double dense_saved = rows * static_cast<double>(c.shape.neurons) * (c.shape.gated ? 3 : 1) *
                             static_cast<double>(c.x.element_size());
  return {{"tokens", c.x.size(0)},
          {"nnz_target", c.nnz_target},
          {"nnz_mean", nnz / rows},
          {"nnz_max", counts.max_row_nnz()},
          {"distinct_neurons", counts.active_neurons()},
          {"dense_us", timings[0].median_us},
          {"dense_us_min", timings[0].min_us},
          {"dense_us_max", timings[0].max_us},
          {"dense_impl", dense.name()},
          {"runs", timings[0].runs_us.size()},
          {"sparse_us", timings[1].median_us},
          {"sparse_us_min", timings[1].min_us},
          {"sparse_us_max", timings[1].max_us},
          {"sparse_forward_us", forward_us},
          {"sparse_impl", sparse.describe()},
          {"speedup", timings[0].median_us / timings[1].median_us},
          {"speedup_min", *std::min_element(ratios.begin(), ratios.end())},
          {"speedup_max", *std::max_element(ratios.begin(), ratios.end())},
          {"saved_bytes", sparse.saved_bytes()},
          {"dense_saved_bytes", dense_saved},
          {"rms_rel_err", error_of(few_sparse.gradients(), exact)},
          {"dense_rms_rel_err", error_of(few_dense.gradients(), exact)}};
}

}  // namespace twell::lm
