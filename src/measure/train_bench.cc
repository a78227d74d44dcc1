#include "measure/train_bench.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <array>

#include "decoder/sparse_operators.h"
#include "measure/reference.h"
#include "twell/train.h"
#include "twell/tuning.h"

namespace twell::measure {
namespace {

struct Gradients {
  at::Tensor dx, gate, up, down;  // down [H, D]
};

// What a user of PyTorch runs: autograd over bf16 GEMMs, gate and up as one or as two.
class DenseTraining {
 public:
  DenseTraining(const TrainCase& c, bool joined)
      : activation_(c.activation), joined_(joined && c.layer.up.defined()) {
    const auto leaf = [](const at::Tensor& t) { return t.detach().clone().requires_grad_(); };
    gate_ = leaf(joined_ ? at::cat({c.layer.gate, c.layer.up}) : c.layer.gate);
    if (c.layer.up.defined() && !joined_) up_ = leaf(c.layer.up);
    down_ = leaf(c.layer.down);
    x_ = leaf(c.x);
  }

  const char* name() const { return joined_ ? "autograd, gate and up joined" : "autograd"; }

  void step(const at::Tensor& dy) {
    for (at::Tensor* t : {&gate_, &up_, &down_, &x_}) {
      if (t->defined()) t->mutable_grad() = at::Tensor();
    }
    at::Tensor g = at::linear(x_, gate_);
    at::Tensor u;
    if (joined_) {
      const std::int64_t h = g.size(1) / 2;
      u = g.narrow(1, h, h);
      g = g.narrow(1, 0, h);
    } else if (up_.defined()) {
      u = at::linear(x_, up_);
    }
    g = lm::activate(g, activation_);
    at::linear(u.defined() ? g * u : g, down_).backward(dy);
  }

  Gradients gradients() const {
    Gradients out = {x_.grad(), gate_.grad(), {}, down_.grad().t()};
    if (joined_) {
      const std::int64_t h = out.gate.size(0) / 2;
      out.up = out.gate.narrow(0, h, h);
      out.gate = out.gate.narrow(0, 0, h);
    } else if (up_.defined()) {
      out.up = up_.grad();
    }
    return out;
  }

 private:
  lm::ActivationChoice activation_;
  bool joined_;
  at::Tensor gate_, up_, down_, x_;
};

MatrixView mutable_view(const at::Tensor& t) {
  const ConstMatrixView view = lm::matrix_view(t);
  return {t.mutable_data_ptr(), view.dtype, view.rows, view.cols, view.row_stride};
}

class SparseTraining {
 public:
  explicit SparseTraining(const TrainCase& c)
      : context_({.threads = at::get_num_threads(), .tier = {}}),
        layer_(c.layer),
        x_(c.x),
        activation_(lm::sparse_activation(c.activation)),
        y_(at::empty_like(c.x)),
        axis_(c.x.to(at::kFloat).mean(0)) {
    gradients_ = {
        at::empty_like(c.x), at::empty_like(c.layer.gate), {}, at::empty_like(c.layer.gate)};
    if (c.layer.up.defined()) gradients_.up = at::empty_like(c.layer.up);
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
    ffn_forward(context_, lm::matrix_view(x_), operands.weights, activation_, mutable_view(y_),
                pattern_, &counts_);
  }
  void backward(const at::Tensor& dy) {
    FfnBackward in = {lm::matrix_view(dy),
                      lm::matrix_view(x_),
                      lm::matrix_view(layer_.gate),
                      {},
                      lm::matrix_view(layer_.down_t),
                      pattern_.view(),
                      activation_};
    FfnGradients out = {mutable_view(gradients_.dx),
                        mutable_view(gradients_.gate),
                        {},
                        mutable_view(gradients_.down)};
    if (layer_.up.defined()) {
      in.up = lm::matrix_view(layer_.up);
      out.up = mutable_view(gradients_.up);
    }
    ffn_backward(context_, in, out);
  }

  std::string describe() const {
    const ConstMatrixView x = lm::matrix_view(x_);
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
    const ConstMatrixView gate = lm::matrix_view(layer_.gate);
    Prepared out{{gate, {}, lm::matrix_view(layer_.down_t)}, {}, {}};
    if (layer_.up.defined()) out.weights.up = lm::matrix_view(layer_.up);
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
  ActivationSpec activation_;
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
  const at::Tensor x = wide(c.x), gate = wide(c.layer.gate), down = wide(c.layer.down);
  const at::Tensor up = c.layer.up.defined() ? wide(c.layer.up) : at::Tensor();
  at::Tensor h = lm::activate(at::linear(x, gate), c.activation);
  if (up.defined()) h = h * at::linear(x, up);
  at::linear(h, down).backward(dy.to(at::kDouble));
  return {x.grad(), gate.grad(), up.defined() ? up.grad() : at::Tensor(), down.grad().t()};
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

}  // namespace twell::measure
