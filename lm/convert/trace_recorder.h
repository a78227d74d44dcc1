// Recording which neurons fire while a model runs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "decoder/model.h"
#include "files/activity_trace.h"

namespace twell::lm {

// Calls `row` with the ascending ids of the non-zeros of each row of `gate` [N, H].
void for_each_row(const at::Tensor& gate,
                  const std::function<void(std::span<const std::uint32_t>)>& row);

// Needs the activated gate in memory, so layers run their dense path while it watches; a model
// loaded with FfnPath::sparse answers with a twell::Error.
class TraceRecorder final : public FfnObserver {
 public:
  TraceRecorder(const Model& model, std::int64_t window);
  bool wants_hidden() const override { return true; }
  void observe(const FfnActivity& activity) override;
  io::ActivityTraceWriter& trace() { return trace_; }

 private:
  io::ActivityTraceWriter trace_;
};

}  // namespace twell::lm
