#include "convert/trace_recorder.h"

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

void for_each_row(const at::Tensor& gate,
                  const std::function<void(std::span<const std::uint32_t>)>& row) {
  constexpr std::int64_t kRows = 256;  // bounds the list of a layer that is not sparse
  std::vector<std::uint32_t> ids;
  for (std::int64_t first = 0; first < gate.size(0); first += kRows) {
    const std::int64_t rows = std::min(kRows, gate.size(0) - first);
    const at::Tensor fired = at::nonzero(gate.narrow(0, first, rows)).contiguous().cpu();
    const auto* pair = fired.const_data_ptr<std::int64_t>();  // (row, neuron), ascending
    const auto* end = pair + 2 * fired.size(0);
    for (std::int64_t r = 0; r < rows; ++r) {
      ids.clear();
      for (; pair != end && pair[0] == r; pair += 2) {
        ids.push_back(static_cast<std::uint32_t>(pair[1]));
      }
      row(ids);
    }
  }
}

TraceRecorder::TraceRecorder(const Model& model, std::int64_t window)
    : trace_(header_of(model, window)) {}

void TraceRecorder::observe(const FfnActivity& activity) {
  for_each_row(activity.gate, [&](std::span<const std::uint32_t> row) {
    trace_.append(static_cast<std::uint32_t>(activity.layer), row);
  });
}

}  // namespace twell::lm
