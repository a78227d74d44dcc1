#include "engine/trace_recorder.h"

#include <torch/types.h>

#include <algorithm>
#include <vector>

namespace twell::lm {
namespace {

io::ActivityTraceHeader header_of(const Model& model, std::int64_t window) {
  const io::ModelConfig& config = model.config();
  return {static_cast<std::uint32_t>(config.num_hidden_layers),
          static_cast<std::uint32_t>(config.hidden_size),
          static_cast<std::uint32_t>(config.intermediate_size),
          config.gated,
          static_cast<std::uint32_t>(window),
          0};
}

}  // namespace

TraceRecorder::TraceRecorder(const Model& model, std::int64_t window)
    : trace_(header_of(model, window)) {}

void TraceRecorder::observe(const FfnActivity& activity) {
  constexpr std::int64_t kRows = 256;  // bounds the list of a layer that is not sparse
  std::vector<std::uint32_t> row;
  for (std::int64_t first = 0; first < activity.rows; first += kRows) {
    const std::int64_t rows = std::min(kRows, activity.rows - first);
    const at::Tensor fired = at::nonzero(activity.gate.narrow(0, first, rows)).contiguous();
    const auto* pairs = fired.const_data_ptr<std::int64_t>();  // (row, neuron), ascending
    const auto* end = pairs + 2 * fired.size(0);
    for (std::int64_t r = 0; r < rows; ++r) {
      row.clear();
      for (; pairs != end && pairs[0] == r; pairs += 2) {
        row.push_back(static_cast<std::uint32_t>(pairs[1]));
      }
      trace_.append(static_cast<std::uint32_t>(activity.layer), row);
    }
  }
}

}  // namespace twell::lm
