#include "choice/path_chooser.h"

#include <utility>

namespace twell::lm {

PathChooser::PathChooser(CostModel cost, const FfnShape& shape, DeviceRuntime& runtime)
    : cost_(std::move(cost)), shape_(shape), runtime_(runtime), density_(shape.hidden, runtime) {}

bool PathChooser::dense(std::int64_t rows, double hot) {
  density_.look();
  return density() && cost_.prefers_dense(rows, *density(), shape_, hot);
}

void PathChooser::replace_cost(const std::function<CostModel(double density)>& replacement) {
  density_.look();
  if (density()) cost_ = replacement(*density());
}

bool PathChooser::samples() {
  constexpr std::int64_t kEvery = 16;
  if (runtime_.capturing()) {
    recorded_ = true;
    return false;
  }
  const std::int64_t call = calls_++;
  return std::exchange(recorded_, false) || call < 2 || call % kEvery == 0;
}

}  // namespace twell::lm
