#include "layer/block_builder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "core/team.h"
#include "ops/validate.h"
#include "twell/transpose.h"
#include "twell/tuning.h"

namespace twell {
namespace {

void require_stored(const char* operation, const StoredWeights& w, DType x) {
  require_weight_shape(operation, "gate", w.gate.type, w.gate.rows, w.gate.cols);
  const auto weight = [&](const char* name, const WeightView& view, std::int64_t rows,
                          std::int64_t cols, ScaledBy scaled_by) {
    require_weight(operation, name, view, x, rows, cols);
    require_scaled_by(operation, name, view, scaled_by);
    require_finite_scales(operation, name, view);
  };
  weight("gate", w.gate, w.gate.rows, w.gate.cols, ScaledBy::row);
  if (w.up) weight("up", *w.up, w.gate.rows, w.gate.cols, ScaledBy::row);
  require(!in_blocks(w.down.type), operation, "down", "expected bf16, f32 or codes of 8 bits, got ",
          name_of(w.down.type));
  // As wide as y, which need not be as wide as x.
  if (w.neuron_major) {
    weight("down", w.down, w.gate.rows, w.down.cols, ScaledBy::column);
  } else {
    weight("down", w.down, w.down.rows, w.gate.rows, ScaledBy::row);
  }
}

DType dtype_of_x(const StoredWeights& w, const BlockOptions& options) {
  if (options.dtype) return *options.dtype;
  for (const WeightView& view : {w.gate, w.up.value_or(w.gate), w.down}) {
    if (!has_scales(view.type)) return as_dtype(view.type);
  }
  return DType::bf16;
}

// Rows of a weight to others of its shape and type, `stride` numbers apart.
void copy_rows(const Context& context, const WeightView& in, std::byte* out, std::int64_t stride) {
  const auto bytes = static_cast<std::size_t>(bytes_of(in.type, in.cols));
  parallel_for(context, in.rows, [&](std::int64_t r) {
    std::memcpy(out + bytes_of(in.type, r * stride), in.row_bytes(r), bytes);
  });
}

// A weight in memory of its own, as it is or turned around; rows an odd number of cache lines apart
// or adjacent.
struct Copy {
  PreparedMemory memory;
  WeightView view;
};
Copy copy_of(const Context& context, const WeightView& w, bool turned, bool spread) {
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
    view = transpose(w, data, stride, &context);
  } else {
    copy_rows(context, w, data, stride);
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

std::int64_t bytes_of_rows(const WeightView& w) {
  return bytes_of(w.type, w.rows * w.cols) + 4 * w.scale_count();
}

// The form with its vectors in memory of their own.
struct OwnForm {
  FfnForm form;
  std::shared_ptr<const std::vector<float>> vectors;
};
OwnForm copy_of(const FfnForm& form) {
  OwnForm out{form, nullptr};
  auto all = std::make_shared<std::vector<float>>();
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    all->insert(all->end(), form[i].begin(), form[i].end());
  }
  const float* at = all->data();
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    out.form[i] = {at, form[i].size()};
    at += form[i].size();
  }
  out.vectors = std::move(all);
  return out;
}

}  // namespace

void require_findings(const char* operation, const LayerFindings& findings, const FfnShape& shape) {
  const auto width = std::ssize(findings.mean), neurons = std::ssize(findings.fired);
  require(width == shape.width && neurons == shape.neurons, operation, "findings",
          "expected that of a layer of width ", shape.width, " and ", shape.neurons,
          " neurons, got one of ", width, " and ", neurons);
  // So that sums of `fired` are an int64_t.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  require(findings.inputs >= 0 && findings.inputs <= kMost, operation, "findings", "expected 0 to ",
          kMost, " inputs, got ", findings.inputs);
  for (const std::int64_t fired : findings.fired) {
    require(fired >= 0 && fired <= findings.inputs, operation, "findings",
            "expected neurons that 0 to ", findings.inputs, " inputs fired, got ", fired);
  }
  const double candidates = findings.candidates.value_or(0.0);
  require(candidates >= 0.0 && candidates <= 1.0, operation, "findings",
          "expected a share of candidates from 0 to 1, got ", candidates);
}

BlockBuilder::BlockBuilder(const char* operation, const Context& context,
                           const StoredWeights& weights, const FfnForm& form,
                           const BlockOptions& options)
    : operation_(operation), tier_(context.tier()) {
  const DType dtype = dtype_of_x(weights, options);
  require_stored(operation, weights, dtype);
  LayerBlock& out = placed_;
  out.weights_ = {weights.gate, weights.up, weights.down};
  out.shape_ = out.weights_.shape(dtype);
  const std::int64_t columns = weights.neuron_major ? weights.down.cols : weights.down.rows;
  require_form(operation, form, out.shape_, columns);

  const bool spread = options.spread.value_or(tuning_of(tier_).gather_columns > 0);
  const auto place = [&](WeightView& weight, bool turned) {
    if (!turned && !spread) {
      out.external_bytes_ += bytes_of_rows(weight);
      return;
    }
    Copy own = copy_of(context, weight, turned, spread);
    weight = own.view;
    out.own_bytes_ += static_cast<std::int64_t>(own.memory.bytes());
    out.owners_.push_back(std::make_shared<PreparedMemory>(std::move(own.memory)));
  };
  if (out.weights_.up) place(*out.weights_.up, false);
  place(out.weights_.down, !weights.neuron_major);
  OwnForm own = copy_of(form);
  out.form_ = own.form;
  out.own_bytes_ += 4 * std::ssize(*own.vectors);
  out.owners_.push_back(std::move(own.vectors));
  const bool screens = tuning_of(tier_).screen_limit > 0.0 && !has_scales(weights.gate.type);
  if (!screens) pack(&context);
}

void BlockBuilder::pack(const Context* context) {
  LayerBlock& out = placed_;
  const auto packed = std::make_shared<PackedWeight>(out.weights_.gate, context);
  out.own_bytes_ += static_cast<std::int64_t>(
      packed_bytes(out.weights_.gate.type, out.shape_.neurons, out.shape_.width));
  out.weights_.gate = packed->view();
  out.owners_.push_back(packed);
}

LayerBlock BlockBuilder::build(const Context* context, const LayerFindings* findings,
                               const std::optional<Screen>& screen) {
  if (findings != nullptr) require_findings(operation_, *findings, placed_.shape_);
  const bool pays = reads_gate() && findings != nullptr && screen_pays(tier_, findings->candidates);
  if (reads_gate() && !pays) pack(context);
  LayerBlock out = placed_;
  if (pays) {
    const ConstMatrixView gate = out.weights_.gate.matrix();
    const auto own =
        std::make_shared<Screen>(screen ? *screen : Screen(gate, findings->mean.data(), context));
    out.weights_.screen = own->view();
    out.owners_.push_back(own);
    out.own_bytes_ += static_cast<std::int64_t>(screen_bytes(gate.rows, gate.cols));
    out.external_bytes_ += bytes_of_rows(out.weights_.gate);
  }
  return findings != nullptr ? with(out, *findings) : out;
}

LayerBlock BlockBuilder::with(const LayerBlock& block, const LayerFindings& findings) {
  LayerBlock out = block;
  out.findings_ = std::make_shared<LayerFindings>(findings);
  return out;
}

LayerBlock BlockBuilder::of(const FfnShape& shape, const FfnWeights& weights, const FfnForm& form,
                            std::shared_ptr<const LayerFindings> findings,
                            std::shared_ptr<const void> owner, std::int64_t own_bytes) {
  LayerBlock out;
  out.shape_ = shape;
  out.weights_ = weights;
  out.form_ = form;
  out.findings_ = std::move(findings);
  out.owners_.push_back(std::move(owner));
  out.own_bytes_ = own_bytes;
  return out;
}

LayerBlock::LayerBlock(const Context& context, const StoredWeights& weights, const FfnForm& form,
                       const LayerFindings* findings, const BlockOptions& options)
    : LayerBlock(
          BlockBuilder("LayerBlock", context, weights, form, options).build(&context, findings)) {}

}  // namespace twell
