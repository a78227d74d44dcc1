#include "torch_ops/layer_ops.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "torch_ops/arguments.h"
#include "torch_ops/cpu_context.h"
#include "torch_ops/form_arguments.h"
#include "torch_ops/form_text.h"
#include "twell/coded_matrix.h"
#include "twell/layer.h"
#include "twell/transpose.h"

namespace twell::torch_ops {
namespace {

// --- what a block is made of ---------------------------------------------------------------------

StoredWeights stored_of(const LayerArguments& layer) {
  const auto weight = [&](const char* name, const Tensor& tensor) {
    const WeightView view = weight_of({layer.operation, name, tensor});
    if (view.layout == WeightLayout::panels) {
      fail(layer.operation, name, "expected a weight as stored, got a packed one");
    }
    return view;
  };
  StoredWeights out;
  out.gate = weight("gate", layer.gate);
  if (layer.up.has_value()) out.up = weight("up", *layer.up);
  out.down = weight("down", layer.down);
  return out;
}

const void* elements_of_list(const Argument& argument, ScalarType type, std::int64_t count = -1) {
  const Tensor& tensor = argument.tensor;
  require_device(argument);
  if (tensor.scalar_type() != type || tensor.dim() != 1 || !tensor.is_contiguous() ||
      (count >= 0 && tensor.size(0) != count)) {
    fail(argument.operation, argument.name,
         std::string("expected contiguous ") + torch::headeronly::toString(type) +
             (count < 0 ? " [n]" : " [" + std::to_string(count) + "]") + ", got " +
             torch::headeronly::toString(tensor.scalar_type()) + " " + shape_of(tensor));
  }
  return tensor.const_data_ptr();
}

template <class T>
std::vector<T> values_of(const Argument& argument, ScalarType type, std::int64_t count = -1) {
  const auto* const first = static_cast<const T*>(elements_of_list(argument, type, count));
  return {first, first + argument.tensor.numel()};
}

// Places in the f64 of findings.
constexpr std::size_t kInputs = 0, kCandidates = 1;

std::optional<LayerFindings> findings_of(const char* operation,
                                         const std::vector<Tensor>& findings) {
  if (findings.empty()) return {};
  if (findings.size() != 3) {
    fail(operation, "findings", "expected what examine_layer returned, or none");
  }
  const auto seen = values_of<double>({operation, "findings", findings[2]}, ScalarType::Double, 2);
  LayerFindings out;
  out.inputs = static_cast<std::int64_t>(seen[kInputs]);
  out.mean = values_of<float>({operation, "mean", findings[0]}, ScalarType::Float);
  out.fired = values_of<std::int64_t>({operation, "fired", findings[1]}, ScalarType::Long);
  if (seen[kCandidates] >= 0.0) out.candidates = seen[kCandidates];
  return out;
}

template <class T>
Tensor tensor_of(const Output& output, const std::vector<T>& values, ScalarType type) {
  Tensor out = new_empty(output, {std::ssize(values)}, type);
  std::copy(values.begin(), values.end(), static_cast<T*>(out.mutable_data_ptr()));
  return out;
}

// --- a block, and what is kept of it -------------------------------------------------------------

std::span<const std::byte> bytes_of_block(const Argument& argument) {
  const void* const data = elements_of_list(argument, ScalarType::Byte);
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(argument.tensor.numel())};
}

LayerBlock view_of(const char* operation, const Tensor& block) {
  return LayerBlock::view(bytes_of_block({operation, "block", block}));
}

struct OpenLayer {
  Tensor block;  // keeps its bytes alive
  Layer layer;
};

// Those of the process, by number.
class OpenLayers {
 public:
  std::int64_t add(std::shared_ptr<OpenLayer> layer) {
    const std::lock_guard lock(mutex_);
    layers_.emplace(++last_, std::move(layer));
    return last_;
  }
  void remove(std::int64_t number) {
    std::shared_ptr<OpenLayer> freed;  // outside the lock
    const std::lock_guard lock(mutex_);
    if (const auto found = layers_.find(number); found != layers_.end()) {
      freed = std::move(found->second);
      layers_.erase(found);
    }
  }
  // Null where there is none of this number that reads this memory. A tensor that holds a number
  // may be a copy, of another process even.
  std::shared_ptr<OpenLayer> find(std::int64_t number, const Tensor& block) const {
    const std::lock_guard lock(mutex_);
    const auto found = layers_.find(number);
    const bool own =
        found != layers_.end() && found->second->block.const_data_ptr() == block.const_data_ptr();
    return own ? found->second : nullptr;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::int64_t, std::shared_ptr<OpenLayer>> layers_;
  std::int64_t last_ = 0;
};

// Never destroyed: threads of the interpreter may outlive static objects.
OpenLayers& open_layers() {
  static auto& all = *new OpenLayers;
  return all;
}

std::int64_t number_of(const Argument& layer) {
  return *static_cast<const std::int64_t*>(elements_of_list(layer, ScalarType::Long, 1));
}

LayerOptions options_of(const char* operation, const std::string& path,
                        const std::vector<Tensor>& cost, const LayerBlock& block) {
  LayerOptions out;
  if (path == "sparse") {
    out.path = LayerPath::sparse;
  } else if (path == "dense") {
    out.path = LayerPath::dense;
  } else if (path != "auto") {
    fail(operation, "path", "expected auto, sparse or dense, got \"" + path + '"');
  }
  if (cost.empty()) return out;
  if (cost.size() != 4) {
    fail(operation, "cost",
         "expected tokens, densities, dense and sparse, got " + std::to_string(cost.size()) +
             " tensors");
  }
  const auto of = [&](const char* name, const Tensor& tensor, std::int64_t count = -1) {
    return values_of<double>({operation, name, tensor}, ScalarType::Double, count);
  };
  if (cost.front().numel() == 0) {
    out.cost = built_in_cost_model(cpu_context().tier());
    return out;
  }
  CostModel& model = out.cost.emplace();
  model.measured_on = "this machine";
  model.gated = block.shape().gated;
  const std::vector<double> tokens = of("tokens", cost[0]);
  model.tokens.assign(tokens.begin(), tokens.end());
  model.densities = of("densities", cost[1]);
  model.dense = of("dense", cost[2], std::ssize(tokens));
  const auto rows = std::ssize(tokens), each = std::ssize(model.densities);
  const std::vector<double> sparse = of("sparse", cost[3], rows * each);
  for (auto at = sparse.begin(); at != sparse.end(); at += each) {
    model.sparse.emplace_back(at, at + each);
  }
  return out;
}

// --- weights as a checkpoint has them ------------------------------------------------------------

// Rows of numbers, or of codes with the scales of rows behind them.
Tensor stored(const Output& output, const WeightView& rows) {
  const std::int64_t bytes = bytes_of(rows.type, rows.cols);
  const bool codes = has_scales(rows.type);
  const ScalarType type = rows.type == WeightType::int8   ? ScalarType::Char
                          : rows.type == WeightType::int4 ? ScalarType::Byte
                                                          : scalar_type_of(as_dtype(rows.type));
  Tensor out = new_empty(output,
                         {codes ? coded_extent(rows.rows, bytes, ScaledBy::row) : rows.rows,
                          bytes / element_bytes(rows.type)},
                         type);
  auto* const to = static_cast<std::byte*>(out.mutable_data_ptr());
  for (std::int64_t r = 0; r < rows.rows; ++r) {
    std::memcpy(to + r * bytes, rows.row_bytes(r), static_cast<std::size_t>(bytes));
  }
  if (!codes) return out;
  const std::int64_t end = rows.rows * bytes, scales = coded_scales_at(rows.rows, bytes);
  const std::int64_t all = out.numel();
  std::fill(to + end, to + all, std::byte{});
  std::memcpy(to + scales, rows.scales, static_cast<std::size_t>(4 * rows.scale_count()));
  return out;
}

Tensor stored_gate(const Output& output, const WeightView& gate) {
  if (gate.layout == WeightLayout::rows) return stored(output, gate);
  if (!has_scales(gate.type)) {
    Tensor out = new_empty(output, {gate.rows, gate.cols}, scalar_type_of(as_dtype(gate.type)));
    unpack_weight(gate, mutable_matrix(out, as_dtype(gate.type), gate.rows, gate.cols));
    return out;
  }
  const std::int64_t bytes = bytes_of(gate.type, gate.cols);
  Tensor out = new_empty(output, {coded_extent(gate.rows, bytes, ScaledBy::row), bytes},
                         gate.type == WeightType::int8 ? ScalarType::Char : ScalarType::Byte);
  unpack_codes(gate, out.mutable_data_ptr());
  return out;
}

Tensor stored_down(const Output& output, const WeightView& down) {
  PreparedMemory turned(static_cast<std::size_t>(bytes_of(down.type, down.rows) * down.cols));
  return stored(output, transpose(down, turned.mutable_data(), down.rows, &cpu_context()));
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor> examine_layer(const Tensor& x, const OptionalTensors& weights,
                                                 const std::string& form) {
  constexpr const char* kOperation = "examine_layer";
  const Rows rows = rows_of({kOperation, "x", x});
  const DType dtype = rows.view.dtype;
  Context& context = cpu_context();
  const LayerArguments arguments(kOperation, weights, form, 0);
  const StoredWeights stored = stored_of(arguments);
  const CpuForm own(arguments, dtype, stored.gate.rows, stored.down.rows);
  const Layer layer(context, stored, own.get(),
                    {.block = {.dtype = dtype}, .path = LayerPath::sparse});
  const LayerFindings found = layer.examine(context, rows.view);
  const std::vector<double> seen = {static_cast<double>(found.inputs),
                                    found.candidates.value_or(-1.0)};
  return {tensor_of({kOperation, "mean", x}, found.mean, ScalarType::Float),
          tensor_of({kOperation, "fired", x}, found.fired, ScalarType::Long),
          tensor_of({kOperation, "seen", x}, seen, ScalarType::Double)};
}

Tensor make_block(const OptionalTensors& weights, const std::string& form, ScalarType dtype,
                  const std::vector<Tensor>& findings) {
  constexpr const char* kOperation = "make_block";
  const DType of_x = dtype_of(kOperation, "dtype", dtype, false);
  const LayerArguments arguments(kOperation, weights, form, 0);
  const StoredWeights stored = stored_of(arguments);
  const CpuForm own(arguments, of_x, stored.gate.rows, stored.down.rows);
  const std::optional<LayerFindings> found = findings_of(kOperation, findings);
  const LayerBlock block(cpu_context(), stored, own.get(), found ? &*found : nullptr,
                         {.dtype = of_x});
  Tensor out = new_empty({kOperation, "block", arguments.gate},
                         {static_cast<std::int64_t>(block.size())}, ScalarType::Byte);
  block.write(out.mutable_data_ptr());
  return out;
}

std::vector<Tensor> unpack_block(const Tensor& block) {
  constexpr const char* kOperation = "unpack_block";
  const LayerBlock layer = view_of(kOperation, block);
  const FfnWeights& w = layer.weights();
  const auto none = [&](const char* name) {
    return new_empty({kOperation, name, block}, {0}, ScalarType::Float);
  };
  std::vector<Tensor> out = {stored_gate({kOperation, "gate", block}, w.gate),
                             w.up ? stored({kOperation, "up", block}, *w.up) : none("up"),
                             stored_down({kOperation, "down", block}, w.down)};
  for (std::size_t i = 0; i < kFormVectors.size(); ++i) {
    const std::span<const float> vector = layer.form()[i];
    const std::vector<float> values(vector.begin(), vector.end());
    out.push_back(tensor_of({kOperation, kFormVectors[i].name, block}, values, ScalarType::Float));
  }
  return out;
}

std::string form_of_block(const Tensor& block) {
  return text_of(view_of("form_of_block", block).form());
}

bool has_screen(const Tensor& block) {
  return view_of("has_screen", block).gate_form() == GateForm::screened;
}

Tensor open_layer(const Tensor& block, const std::string& path, const std::vector<Tensor>& cost) {
  constexpr const char* kOperation = "open_layer";
  const LayerBlock view = view_of(kOperation, block);
  auto open = std::make_shared<OpenLayer>(
      OpenLayer{block, Layer(cpu_context(), view, options_of(kOperation, path, cost, view))});
  Tensor out = new_empty({kOperation, "layer", block}, {1}, ScalarType::Long);
  *static_cast<std::int64_t*>(out.mutable_data_ptr()) = open_layers().add(std::move(open));
  return out;
}

void close_layer(const Tensor& layer) {
  open_layers().remove(number_of({"close_layer", "layer", layer}));
}

Tensor run_layer(const Tensor& x, const Tensor& block, const Tensor& layer, std::int64_t columns) {
  constexpr const char* kOperation = "run_layer";
  const Rows rows = rows_of({kOperation, "x", x});
  const std::shared_ptr<OpenLayer> open =
      open_layers().find(number_of({kOperation, "layer", layer}), block);
  Tensor y = new_rows({kOperation, "x", x}, columns, rows.view.dtype);
  const MatrixView out = mutable_matrix(y, rows.view.dtype, rows.view.rows, columns);
  if (open) {
    open->layer.run(cpu_context(), rows.view, out);
  } else {
    const LayerBlock view = view_of(kOperation, block);
    ffn(cpu_context(), rows.view, view.weights(), view.form(), out);
  }
  return y;
}

std::string describe_layer(const Tensor& block, const Tensor& layer, std::int64_t rows) {
  constexpr const char* kOperation = "describe_layer";
  if (const std::shared_ptr<OpenLayer> open =
          open_layers().find(number_of({kOperation, "layer", layer}), block)) {
    return open->layer.describe(cpu_context(), rows);
  }
  const Layer stateless(cpu_context(), view_of(kOperation, block), {.path = LayerPath::sparse});
  return stateless.describe(cpu_context(), rows);
}

}  // namespace twell::torch_ops
