#include "twell/layer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "layer/block_builder.h"
#include "layer/own_dense.h"
#include "layer/scaled_cost.h"
#include "ops/validate.h"
#include "twell/tuning.h"

namespace twell {
namespace {

constexpr const char* kName = "Layer";

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

void require_cost(const CostModel& cost) {
  const auto of_all = [](const auto& values, std::size_t count) { return values.size() == count; };
  const std::size_t tokens = cost.tokens.size(), densities = cost.densities.size();
  require(tokens > 0 && densities > 0 && of_all(cost.dense, tokens) &&
              of_all(cost.sparse, tokens) &&
              std::all_of(cost.sparse.begin(), cost.sparse.end(),
                          [&](const auto& row) { return of_all(row, densities); }),
          kName, "cost", "expected a figure for each of its tokens and densities, got ",
          cost.dense.size(), " dense and ", cost.sparse.size(), " sparse ones of ", tokens,
          " tokens and ", densities, " densities");
}

bool has_codes(const FfnWeights& w) {
  return has_scales(w.gate.type) || (w.up && has_scales(w.up->type)) || has_scales(w.down.type);
}

// What a sample showed, and the screen that it was tried with.
struct Trial {
  LayerFindings findings;
  std::optional<Screen> screen;
};

}  // namespace

class Layer::State {
 public:
  State(const Context& context, const StoredWeights& weights, const FfnForm& form,
        LayerOptions options)
      : tier_(context.tier()),
        builder_(std::in_place, kName, context, weights, form, options.block),
        placed_(builder_->placed()),
        options_(std::move(options)) {
    if (!has_scales(weights.gate.type)) gate_as_stored_ = weights.gate;
    choose_by();
  }
  State(const Context& context, const LayerBlock& block, LayerOptions options)
      : tier_(context.tier()), placed_(block), options_(std::move(options)) {
    if (placed_.gate_form() == GateForm::screened) gate_as_stored_ = placed_.weights().gate;
    choose_by();
    set(placed_);
  }

  const FfnShape& shape() const { return placed_.shape(); }
  const LayerBlock& placed() const { return placed_; }
  std::shared_ptr<const LayerBlock> block() const {
    const std::lock_guard lock(mutex_);
    return block_;
  }
  const PathChooser* chooser() const { return chooser_ ? &*chooser_ : nullptr; }
  // "" where nothing is chosen.
  std::string words_of_choice(std::int64_t rows) const {
    const std::lock_guard lock(mutex_);
    if (chooser_) {
      const char* const here = chooses_dense(rows) ? "dense" : "sparse";
      return "; " + chooser_->describe() + "; here: " + here;
    }
    const bool dense = dense_possible_ && options_.path == LayerPath::dense;
    return dense ? "; but every call is dense, on packed weights" : "";
  }

  bool reads_gate() const {
    const std::lock_guard lock(mutex_);
    return (block_ ? *block_ : placed_).gate_form() != GateForm::packed;
  }

  std::int64_t own_bytes() const {
    const std::lock_guard lock(mutex_);
    const LayerBlock& block = block_ ? *block_ : placed_;
    return block.own_bytes() + (dense_ && !options_.make_dense ? own_dense_bytes(block) : 0);
  }

  LayerFindings examine(Context& context, ConstMatrixView sample, bool screen) const {
    const std::lock_guard lock(mutex_);
    return run_sample(context, sample, screen).findings;
  }
  template <class... What>
  void prepare(What&&... what) {
    const std::lock_guard lock(mutex_);
    prepare_locked(std::forward<What>(what)...);
  }
  LayerPath run(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts);

 private:
  // How a call runs, and what with: decided under the lock, which others then have.
  struct Call {
    std::shared_ptr<const LayerBlock> block;
    DenseFfn dense;        // empty: sparse
    bool counted = false;  // the non-zeros of the activated gate are wanted
  };
  // All but choose_by() under the lock.
  Call next(Context& context, ConstMatrixView x);
  void choose_by();
  Trial run_sample(Context& context, ConstMatrixView sample, bool screen) const;
  void prepare_locked(Context& context, ConstMatrixView sample);
  void prepare_locked(const LayerFindings& findings, const std::optional<Screen>& screen = {},
                      const Context* context = nullptr);
  void set(const LayerBlock& block);
  void expect(const LayerFindings& findings);
  void stay_sparse();
  bool chooses_dense(std::int64_t rows) const;
  DenseFfn dense_form(Context& context);
  DenseFfn make_dense(Context& context) const;
  void scale_cost(Context& context, ConstMatrixView x);

  CpuTier tier_;
  std::optional<BlockBuilder> builder_;  // of a layer that was not made of a block
  LayerBlock placed_;  // as the builder has it at first; the gate may have no form
  std::optional<WeightView> gate_as_stored_;  // where a screen can be made of it
  LayerOptions options_;

  mutable std::mutex mutex_;                 // of all that follows
  std::shared_ptr<const LayerBlock> block_;  // once the layer is prepared
  std::optional<PathChooser> chooser_;       // where there is a dense variant
  bool coded_ = false;                       // a weight is of codes
  bool dense_possible_ = false;              // as far as is known
  bool to_be_looked_at_ = false;             // whether there is a dense variant
  std::int64_t scaled_up_to_ = 0;            // rows of the largest call that timed the layer
  DenseFfn dense_;                           // once a call needed it
};

void Layer::State::choose_by() {
  coded_ = has_codes(placed_.weights());
  dense_possible_ = options_.path != LayerPath::sparse;
  to_be_looked_at_ = dense_possible_ && !options_.make_dense;
  if (options_.path) return;
  if (options_.cost) require_cost(*options_.cost);
  if (coded_ && options_.cost && !options_.cost->measured_on.empty()) options_.cost.reset();
  chooser_.emplace(options_.cost ? *options_.cost : built_in_cost_model(tier_), shape());
}

void Layer::State::set(const LayerBlock& block) {
  block_ = std::make_shared<LayerBlock>(block);
  if (block_->gate_form() == GateForm::packed) gate_as_stored_.reset();  // may be freed now
  if (block_->findings() != nullptr) expect(*block_->findings());
}

void Layer::State::expect(const LayerFindings& findings) {
  if (!chooser_) return;
  const auto fired = std::accumulate(findings.fired.begin(), findings.fired.end(), std::int64_t{0});
  chooser_->saw(fired, findings.inputs);
}

Trial Layer::State::run_sample(Context& context, ConstMatrixView sample, bool screen) const {
  require_matrix(kName, "sample", sample, shape().dtype, sample.rows, shape().width);
  require(sample.rows >= kFewestInputs, kName, "sample", "expected ", kFewestInputs,
          " or more inputs, got ", sample.rows);
  LayerFindings findings{sample.rows, mean_of(sample), {}, {}};
  std::optional<Screen> with;
  std::optional<PackedWeight> packed;
  const LayerBlock& block = block_ ? *block_ : placed_;
  FfnWeights operands = block.weights();
  screen = screen && gate_as_stored_;
  if (screen) {
    operands.gate = *gate_as_stored_;
    operands.screen = with.emplace(operands.gate.matrix(), findings.mean.data(), &context).view();
  } else if (operands.form() != GateForm::packed) {
    operands.gate = packed.emplace(operands.gate, &context).view();
    operands.screen = {};
  }
  FfnCounts counts;
  const Matrix y = allocate(sample.rows, block.columns(), shape().dtype);
  ffn(context, sample, operands, block.form(), y.view, &counts);
  findings.fired = std::move(counts.neuron_nnz);
  if (screen) {
    findings.candidates = static_cast<double>(counts.candidates) /
                          (static_cast<double>(sample.rows) * static_cast<double>(shape().neurons));
  }
  return {std::move(findings), std::move(with)};
}

void Layer::State::prepare_locked(Context& context, ConstMatrixView sample) {
  require_matrix(kName, "sample", sample, shape().dtype, sample.rows, shape().width);
  if (sample.rows < kFewestInputs) {
    if (!block_) set(builder_->build(&context, nullptr));
    return;
  }
  const bool screen = !block_ && builder_->reads_gate();
  const Trial trial = run_sample(context, sample, screen);
  prepare_locked(trial.findings, trial.screen, &context);
}

void Layer::State::prepare_locked(const LayerFindings& findings,
                                  const std::optional<Screen>& screen, const Context* context) {
  if (!block_) return set(builder_->build(context, &findings, screen));
  require_findings(kName, findings, shape());
  set(BlockBuilder::with(*block_, findings));
}

Layer::State::Call Layer::State::next(Context& context, ConstMatrixView x) {
  if (to_be_looked_at_) {
    if (!has_own_dense(context, placed_)) stay_sparse();
    to_be_looked_at_ = false;
  }
  const bool no_density = chooser_ && !chooser_->density();
  if (!block_ && !chooser_ && !builder_->reads_gate()) {
    set(builder_->build(&context, nullptr));  // there is nothing to find
  } else if (!block_ || no_density) {
    prepare_locked(context, x);
  }
  if (chooser_ && !options_.cost && x.rows >= kFewestInputs && x.rows > scaled_up_to_) {
    scale_cost(context, x);
  }
  Call call{block_, {}, false};
  if (chooser_ ? chooses_dense(x.rows) : dense_possible_ && options_.path == LayerPath::dense) {
    call.dense = dense_form(context);
  }
  call.counted = chooser_ && chooser_->samples();
  return call;
}

LayerPath Layer::State::run(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts) {
  require_matrix(kName, "x", x, shape().dtype, x.rows, shape().width);
  require_matrix(kName, "y", y, shape().dtype, x.rows, placed_.columns());
  require_apart(kName, "y", y, "x", x);
  if (x.rows == 0) {
    if (counts != nullptr) *counts = {};
    return LayerPath::sparse;
  }
  const Call call = [&] {
    const std::lock_guard lock(mutex_);
    return next(context, x);
  }();
  FfnCounts own;
  if (counts == nullptr && call.counted) counts = &own;
  if (call.dense) {
    call.dense(context, x, y, counts);
  } else {
    ffn(context, x, call.block->weights(), call.block->form(), y, counts);
  }
  if (call.counted) {
    const std::lock_guard lock(mutex_);
    chooser_->saw(counts->nnz(), x.rows);
  }
  return call.dense ? LayerPath::dense : LayerPath::sparse;
}

// Figures are those of numbers: they say nothing of codes until these were timed.
bool Layer::State::chooses_dense(std::int64_t rows) const {
  const bool known = !coded_ || !chooser_->cost().scales.empty();
  return known && chooser_->dense(rows);
}

void Layer::State::stay_sparse() {
  dense_possible_ = false;
  chooser_.reset();
}

// Kept. A choice costs time and never a result: where a chosen form cannot be made, for lack of
// memory most likely, the layer stays sparse. Where it was asked for, that is an error.
DenseFfn Layer::State::dense_form(Context& context) {
  if (dense_) return dense_;
  try {
    dense_ = make_dense(context);
  } catch (const std::exception&) {
    if (options_.path) throw;
    stay_sparse();
  }
  return dense_;
}

DenseFfn Layer::State::make_dense(Context& context) const {
  return options_.make_dense ? options_.make_dense() : make_own_dense(context, *block_);
}

// By calls on rows of x, which are representative. The dense variant is not kept: it may double the
// weights of a layer that never takes that path.
void Layer::State::scale_cost(Context& context, ConstMatrixView x) {
  DenseFfn dense;
  const auto row_bytes = static_cast<std::size_t>(x.cols) * size_of(x.dtype);
  const auto time = [&](std::int64_t tokens) {
    if (!dense) dense = make_dense(context);
    const std::int64_t rows_there = (tokens + x.rows - 1) / x.rows * x.rows;
    const Matrix rows = allocate(rows_there, x.cols, shape().dtype);
    for (std::int64_t r = 0; r < rows_there; ++r) {
      std::memcpy(rows.view.row_bytes(r), x.row_bytes(r % x.rows), row_bytes);
    }
    const Matrix y = allocate(tokens, block_->columns(), shape().dtype);
    const auto batch = [&](std::int64_t i) {
      return ConstMatrixView(rows.view.slice(i % (rows_there / tokens) * tokens, tokens));
    };
    return time_in_turns(
        tokens, [&](std::int64_t i) { dense(context, batch(i), y.view, nullptr); },
        [&](std::int64_t i) { ffn(context, batch(i), block_->weights(), block_->form(), y.view); });
  };
  const std::optional<double> density = chooser_->density();
  if (!density) return;
  const auto& [gate, up, down, screen] = block_->weights();
  const LayerKind kind = {shape(), {gate.type, up ? up->type : gate.type, down.type}};
  ScaledCost scaled = scaled_cost(tier_, context.threads(), kind, *density, x.rows, time);
  chooser_->set_cost(std::move(scaled.cost));
  if (scaled.settled) scaled_up_to_ = x.rows;
}

Layer::Layer(const Context& context, const StoredWeights& weights, const FfnForm& form,
             LayerOptions options)
    : state_(std::make_unique<State>(context, weights, form, std::move(options))) {}
Layer::Layer(const Context& context, const LayerBlock& block, LayerOptions options)
    : state_(std::make_unique<State>(context, block, std::move(options))) {}
Layer::~Layer() = default;
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;

LayerFindings Layer::examine(Context& context, ConstMatrixView sample, bool screen) const {
  return state_->examine(context, sample, screen);
}
void Layer::prepare(Context& context, ConstMatrixView sample) { state_->prepare(context, sample); }
void Layer::prepare(const LayerFindings& findings) { state_->prepare(findings); }

LayerPath Layer::run(Context& context, ConstMatrixView x, MatrixView y, FfnCounts* counts) {
  return state_->run(context, x, y, counts);
}

const FfnShape& Layer::shape() const { return state_->shape(); }
const std::optional<WeightView>& Layer::up() const { return state_->placed().weights().up; }
const WeightView& Layer::down() const { return state_->placed().weights().down; }
const PathChooser* Layer::chooser() const { return state_->chooser(); }

std::optional<LayerBlock> Layer::block() const {
  const std::shared_ptr<const LayerBlock> block = state_->block();
  return block ? std::optional(*block) : std::nullopt;
}

bool Layer::reads_gate() const { return state_->reads_gate(); }

std::int64_t Layer::own_bytes() const { return state_->own_bytes(); }

std::string Layer::describe(const Context& context, std::int64_t rows) const {
  require(rows >= 0 && rows <= std::numeric_limits<std::int32_t>::max(), kName, "rows",
          "expected 0 to 2147483647, got ", rows);
  const std::shared_ptr<const LayerBlock> block = state_->block();
  const GateForm form = block ? block->gate_form() : GateForm::packed;
  std::string out = plan_ffn(context, rows, shape(), form).to_string();
  if (form == GateForm::screened && block->findings() != nullptr) {
    char share[32];
    std::snprintf(share, sizeof share, "%.1f %%",
                  100 * block->findings()->candidates.value_or(1.0));
    out += "; the screen left " + std::string(share);
  }
  if (!block) out += "; its first inputs choose the gate's form";
  const auto& [gate, up, down, screen] = state_->placed().weights();
  if (has_codes(state_->placed().weights())) {
    out += "; gate " + std::string(name_of(gate.type));
    if (up) out += ", up " + std::string(name_of(up->type));
    out += ", down " + std::string(name_of(down.type));
  }
  return out + state_->words_of_choice(rows);
}

}  // namespace twell
