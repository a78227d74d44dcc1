#include "measure/run_energy.h"

namespace twell::lm {

RunEnergy::RunEnergy(const std::string& uuid, std::size_t sides, const std::string& library) {
  if (uuid.empty()) {
    processor_.emplace();
  } else {
    gpu_.emplace(uuid, library);
  }
  joules_.assign(sides, source() == nullptr ? std::nullopt : std::optional(0.0));
}

const char* RunEnergy::source() const {
  if (gpu_) {
    return !gpu_->available() ? nullptr : gpu_->counts() ? "nvml counter" : "nvml power samples";
  }
  return processor_->available() ? "rapl" : nullptr;
}

void RunEnergy::watch(MeasureOptions& measure) {
  if (source() == nullptr) return;
  measure.before_run = [this] { start(); };
  measure.after_run = [this](std::size_t side) { stop(side); };
}

void RunEnergy::start() { gpu_ ? gpu_->start() : processor_->start(); }

void RunEnergy::stop(std::size_t side) {
  const std::optional<double> used = gpu_ ? gpu_->joules() : processor_->joules();
  auto& sum = joules_[side];
  if (sum && used) {
    *sum += *used;
  } else {
    sum.reset();
  }
}

}  // namespace twell::lm
