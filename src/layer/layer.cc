#include "twell/layer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "layer/scaled_cost.h"
#include "ops/validate.h"
#include "twell/transpose.h"
#include "twell/tuning.h"

namespace twell {
namespace {

constexpr const char* kName = "Layer";

void require_weights(const FfnWeights& w, DType x, bool neuron_major) {
  require_weight_shape(kName, "gate", w.gate.type, w.gate.rows, w.gate.cols);
  const auto weight = [&](const char* name, const WeightView& view, std::int64_t rows,
                          std::int64_t cols, ScaledBy scaled_by) {
    require_weight(kName, name, view, x, rows, cols);
    require_scaled_by(kName, name, view, scaled_by);
    require_finite_scales(kName, name, view);
  };
  weight("gate", w.gate, w.gate.rows, w.gate.cols, ScaledBy::row);
  if (w.up) weight("up", *w.up, w.gate.rows, w.gate.cols, ScaledBy::row);
  require(!in_blocks(w.down.type), kName, "down", "expected bf16, f32 or codes of 8 bits, got ",
          name_of(w.down.type));
  // As wide as y, which need not be as wide as x.
  if (neuron_major) {
    weight("down", w.down, w.gate.rows, w.down.cols, ScaledBy::column);
  } else {
    weight("down", w.down, w.down.rows, w.gate.rows, ScaledBy::row);
  }
  require(w.screen.data == nullptr, kName, "screen", "expected none: a layer makes its own");
}

DType dtype_of_x(const FfnWeights& w, const LayerOptions& options) {
  if (options.dtype) return *options.dtype;
  return has_scales(w.gate.type) ? DType::bf16 : as_dtype(w.gate.type);
}

// A matrix in memory of its own.
struct Matrix {
  PreparedMemory memory;
  MatrixView view;
};
Matrix allocate(std::int64_t rows, std::int64_t cols, DType dtype) {
  PreparedMemory own(static_cast<std::size_t>(rows * cols) * size_of(dtype));
  const MatrixView view(own.mutable_data(), dtype, rows, cols);
  return {std::move(own), view};
}

// Rows of a weight or matrix to others of its shape and type.
void copy(const WeightView& in, void* to, std::int64_t stride) {
  const auto bytes = static_cast<std::size_t>(bytes_of(in.type, in.cols));
  auto* const out = static_cast<std::byte*>(to);
#pragma omp parallel for schedule(static)
  for (std::int64_t r = 0; r < in.rows; ++r) {
    std::memcpy(out + bytes_of(in.type, r * stride), in.row_bytes(r), bytes);
  }
}

std::vector<float> mean_of(ConstMatrixView x) {
  std::vector<double> sums(static_cast<std::size_t>(x.cols));
  const auto add = [&]<class T>(const T* row) {
    for (double& sum : sums) sum += static_cast<double>(static_cast<float>(*row++));
  };
  for (std::int64_t r = 0; r < x.rows; ++r) {
    x.dtype == DType::bf16 ? add(x.row<bf16>(r)) : add(x.row<float>(r));
  }
  std::vector<float> out;
  for (const double sum : sums)
    out.push_back(static_cast<float>(sum / static_cast<double>(x.rows)));
  return out;
}

std::uint64_t mixed(const std::byte* bytes, std::int64_t count, std::uint64_t hash) {
  for (std::int64_t i = 0; i < count; ++i) {
    hash = (hash ^ std::to_integer<std::uint64_t>(bytes[i])) * 0x100000001b3U;
  }
  return hash;
}
// FNV-1a over 16 bytes of each row, at a place that moves from row to row, and over all scales.
std::uint64_t mixed(const WeightView& w, std::uint64_t hash) {
  constexpr std::int64_t kBytes = 16;
  const std::int64_t row = bytes_of(w.type, w.cols);
  const std::int64_t count = std::min(kBytes, row);
  for (std::int64_t r = 0; r < w.rows; ++r) {
    hash = mixed(w.row_bytes(r) + r * 64 % (row - count + 1), count, hash);
  }
  return mixed(reinterpret_cast<const std::byte*>(w.scales), 4 * w.scale_count(), hash);
}

// A weight in memory of its own, as it is or turned around; rows an odd number of cache lines apart
// or adjacent.
struct Copy {
  PreparedMemory memory;
  WeightView view;
};
Copy copy_of(const WeightView& w, bool turned, bool spread) {
  const std::int64_t rows = turned ? w.cols : w.rows, cols = turned ? w.rows : w.cols;
  const auto element = static_cast<std::size_t>(element_bytes(w.type));
  // Blocks are no whole part of a line.
  spread = spread && !in_blocks(w.type);
  const std::int64_t stride = spread ? spread_stride(cols, element) : cols;
  // Scales behind the rows, at a multiple of 4.
  const std::int64_t scales = (bytes_of(w.type, rows * stride) + 3) / 4 * 4;
  PreparedMemory own(static_cast<std::size_t>(scales + 4 * w.scale_count()));
  auto* const data = static_cast<std::byte*>(own.mutable_data());
  WeightView view = w;
  if (turned) {
    view = transpose(w, data, stride);
  } else {
    copy(w, data, stride);
    view.data = data;
    view.row_stride = stride;
  }
  if (w.scales != nullptr) {
    auto* const to = reinterpret_cast<float*>(data + scales);
    std::copy_n(w.scales, w.scale_count(), to);
    view.scales = to;
  }
  return {std::move(own), view};
}

}  // namespace

Layer::Layer(const Context& context, const FfnWeights& weights, const FfnForm& form,
             LayerOptions options)
    : weights_(weights),
      operands_(weights),
      form_(form),
      options_(std::move(options)),
      tier_(context.tier()) {
  shape_ = weights.shape(dtype_of_x(weights, options_));
  require_weights(weights, shape_.dtype, options_.neuron_major);
  if (options_.watch_weights) made_of_ = fingerprint();
  const bool spread = options_.spread.value_or(tuning_of(tier_).gather_columns > 0);
  if (weights.up && spread) {
    Copy own = copy_of(*weights.up, false, true);
    operands_.up = own.view;
    up_memory_ = std::move(own.memory);
  }
  const WeightView& down = weights.down;
  if (!options_.neuron_major || spread) {
    Copy own = copy_of(down, !options_.neuron_major, spread);
    operands_.down = own.view;
    down_memory_ = std::move(own.memory);
  }
  if (options_.make_dense) {
    to_be_scaled_ = !options_.cost.has_value();
    chooser_.emplace(options_.cost ? *options_.cost : built_in_cost_model(tier_), shape_);
  }
  if (!screens()) pack();
}

bool Layer::screens() const {
  return tuning_of(tier_).screen_limit > 0.0 && !has_scales(weights_.gate.type);
}

void Layer::pack() {
  operands_.gate = packed_.emplace(weights_.gate).view();
  operands_.screen = {};
  screen_.reset();
  gate_form_ = GateForm::packed;
}

Layer::Trial Layer::run_sample(Context& context, ConstMatrixView sample, bool screen) const {
  require_matrix(kName, "sample", sample, shape_.dtype, sample.rows, shape_.width);
  require(sample.rows >= kFewestInputs, kName, "sample", "expected ", kFewestInputs,
          " or more inputs, got ", sample.rows);
  LayerFindings findings{sample.rows, mean_of(sample), {}, {}};
  std::optional<Screen> with;
  std::optional<PackedWeight> packed;
  FfnWeights operands = operands_;
  screen = screen && !has_scales(weights_.gate.type);
  if (screen) {
    operands.gate = weights_.gate;
    operands.screen = with.emplace(weights_.gate.matrix(), findings.mean.data()).view();
  } else if (gate_form_ != GateForm::packed) {
    operands.gate = packed.emplace(weights_.gate).view();
    operands.screen = {};
  }
  FfnCounts counts;
  const Matrix y = allocate(sample.rows, operands_.down.cols, shape_.dtype);
  ffn(context, sample, operands, form_, y.view, &counts);
  findings.fired = std::move(counts.neuron_nnz);
  if (screen) {
    findings.candidates = static_cast<double>(counts.candidates) /
                          (static_cast<double>(sample.rows) * static_cast<double>(shape_.neurons));
  }
  return {std::move(findings), std::move(with)};
}

LayerFindings Layer::examine(Context& context, ConstMatrixView sample, bool screen) const {
  return run_sample(context, sample, screen).findings;
}

void Layer::prepare(Context& context, ConstMatrixView sample) {
  if (sample.rows < kFewestInputs) {
    if (reads_gate()) pack();
    return;
  }
  Trial trial = run_sample(context, sample, reads_gate() && screens());
  decide(std::move(trial.findings), std::move(trial.screen));
}

void Layer::prepare(const LayerFindings& findings) {
  require(std::ssize(findings.mean) == shape_.width && std::ssize(findings.fired) == shape_.neurons,
          kName, "findings", "expected that of a layer of width ", shape_.width, " and ",
          shape_.neurons, " neurons, got one of ", findings.mean.size(), " and ",
          findings.fired.size());
  decide(findings, {});
}

void Layer::decide(LayerFindings findings, std::optional<Screen> screen) {
  if (reads_gate()) {
    if (screen_pays(tier_, findings.candidates)) {
      screen_ = screen ? std::move(screen) : Screen(weights_.gate.matrix(), findings.mean.data());
      operands_.screen = screen_->view();
      gate_form_ = GateForm::screened;
    } else {
      pack();
    }
  }
  findings_ = std::move(findings);
  if (!chooser_) return;
  const auto fired =
      std::accumulate(findings_->fired.begin(), findings_->fired.end(), std::int64_t{0});
  chooser_->saw(fired, findings_->inputs);
}

void Layer::run(Context& context, ConstMatrixView x, MatrixView y) {
  const Call call = next(context, x);
  if (x.rows == 0) return;
  if (call.dense) {
    if (!dense_) dense_ = options_.make_dense();
    std::int64_t nnz = 0;
    dense_(x, y, call.counted ? &nnz : nullptr);
    if (call.counted) saw(nnz, x.rows);
    return;
  }
  FfnCounts counts;
  run_sparse(context, x, y, call.counted ? &counts : nullptr);
  if (call.counted) saw(counts.nnz(), x.rows);
}

Layer::Call Layer::next(Context& context, ConstMatrixView x) {
  require_matrix(kName, "x", x, shape_.dtype, x.rows, shape_.width);
  if (x.rows == 0) return {};
  // Where the tier screens nothing, the gate has its form already, and a density is wanted all the
  // same.
  const bool no_density = chooser_ && !chooser_->density();
  if (!gate_form_ || no_density) prepare(context, x);
  // By the first call or not at all: a later one is not made to wait.
  if (std::exchange(to_be_scaled_, false) && x.rows >= kFewestInputs) scale_cost(context, x);
  if (!chooser_) return {};
  return {chooser_->dense(x.rows), chooser_->samples()};
}

void Layer::run_sparse(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts) const {
  require(gate_form_.has_value(), kName, "run_sparse", "expected a layer that was prepared");
  ffn(context, x, operands_, form_, y, counts);
}

void Layer::saw(std::int64_t nnz, std::int64_t rows) {
  if (chooser_) chooser_->saw(nnz, rows);
}

// By calls on rows of x, inputs like those to come. The dense form is not kept: it may double the
// weights of a layer that never takes that path.
void Layer::scale_cost(Context& context, ConstMatrixView x) {
  DenseFfn dense;
  const auto time = [&](std::int64_t tokens) {
    if (!dense) dense = options_.make_dense();
    const std::int64_t copies = (tokens + x.rows - 1) / x.rows;
    const Matrix rows = allocate(copies * x.rows, x.cols, shape_.dtype);
    for (std::int64_t i = 0; i < copies; ++i) copy(x, rows.view.row_bytes(i * x.rows), x.cols);
    const Matrix y = allocate(tokens, operands_.down.cols, shape_.dtype);
    const auto batch = [&](std::int64_t i) {
      return ConstMatrixView(rows.view.slice(i % (rows.view.rows / tokens) * tokens, tokens));
    };
    return time_in_turns(
        tokens, [&](std::int64_t i) { dense(batch(i), y.view, nullptr); },
        [&](std::int64_t i) { run_sparse(context, batch(i), y.view); });
  };
  chooser_->replace_cost(
      [&](double density) { return scaled_cost(tier_, context.threads(), shape_, density, time); });
}

bool Layer::weights_changed() const {
  require(made_of_.has_value(), kName, "weights_changed", "expected a layer with watch_weights");
  return fingerprint() != *made_of_;
}

std::uint64_t Layer::fingerprint() const {
  std::uint64_t hash = mixed(weights_.gate, 0xcbf29ce484222325U);
  if (weights_.up) hash = mixed(*weights_.up, hash);
  return mixed(weights_.down, hash);
}

std::int64_t Layer::own_bytes() const {
  std::size_t bytes = up_memory_.bytes() + down_memory_.bytes();
  if (packed_) bytes += packed_bytes(weights_.gate.type, shape_.neurons, shape_.width);
  if (screen_) bytes += screen_bytes(shape_.neurons, shape_.width);
  return static_cast<std::int64_t>(bytes);
}

std::string Layer::describe(const Context& context, std::int64_t rows) const {
  const GateForm form = gate_form_.value_or(GateForm::packed);
  std::string out = plan_ffn(context, rows, shape_, form).to_string();
  if (form == GateForm::screened) {
    char share[32];
    std::snprintf(share, sizeof share, "%.1f %%", 100 * *findings_->candidates);
    out += "; the screen left " + std::string(share);
  }
  if (!gate_form_) out += "; its first inputs choose the gate's form";
  const auto& [gate, up, down, screen] = weights_;
  if (has_scales(gate.type) || (up && has_scales(up->type)) || has_scales(down.type)) {
    out += "; gate " + std::string(name_of(gate.type));
    if (up) out += ", up " + std::string(name_of(up->type));
    out += ", down " + std::string(name_of(down.type));
  }
  return chooser_ ? out + "; " + chooser_->describe() : out;
}

}  // namespace twell
