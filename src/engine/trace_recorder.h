// Recording which neurons fire while a model runs.
#pragma once

#include <cstdint>

#include "io/activity_trace.h"
#include "models/model.h"

namespace twell::lm {

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
