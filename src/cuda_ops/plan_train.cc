#include <algorithm>

#include "core/check.h"
#include "cuda_ops/planning.h"
#include "cuda_ops/train_buffers.h"

namespace twell::cuda {

TrainPlan plan_train(const Device& device, const Problem& problem, const TrainOptions& options) {
  constexpr const char* kOperation = "cuda::plan_train";
  check_problem(kOperation, problem);
  require(library_present(), kOperation, "device",
          "libcublasLt.so is not to be found, which training needs; install it, or train on "
          "PyTorch's dense layer");
  const auto share = [&](const char* name, double value) {
    require(value >= 0 && value <= 1, kOperation, name, "expected 0 to 1, got ", value);
  };
  share("kept_density", options.kept_density);
  share("turn_density", options.turn_density);
  TrainPlan plan;
  Problem planned = problem;
  if (problem.tokens == 0) planned.hot = 0;
  planned.joined = false;  // g and u are kept, not h
  plan.forward = plan_ffn(device, planned, options.workspace_limit, GemmShape::library);
  const std::int64_t cold = problem.hidden - plan.forward.hot;
  const std::int64_t all = problem.tokens * cold;
  plan.rows = plan_gather_rows(device, planned);
  plan.neuron_blocks = device.sm_count * kGradientBlocks;
  const auto places = [&](double density) {
    return static_cast<std::int64_t>(static_cast<double>(all) * density);
  };
  plan.kept_places = places(options.kept_density);
  // 670 MB of gradients; a turn has a row at least.
  constexpr std::int64_t kMostPlaces = std::int64_t{1} << 25;
  plan.turn_places = std::clamp<std::int64_t>(places(options.turn_density), 1, kMostPlaces);
  plan.turns = static_cast<int>(std::max<std::int64_t>(ceil_div(all, plan.turn_places), 1));
  Carver kept;
  carve_kept(kept, plan);
  plan.kept_bytes = kept.used();
  Carver backward;
  carve_backward(backward, plan);
  Carver forward;
  carve_ffn(forward, plan.forward);
  forward.take<float>(plan.forward.gather.partials);
  plan.workspace_bytes = std::max(backward.used(), forward.used());
  return plan;
}

std::string TrainPlan::to_string() const {
  return concat(forward.to_string(), "; backward: ", kept_places, " places kept, turns of ",
                turn_places, " (", turns, " at most), ", neuron_blocks, " blocks for neurons, ",
                kept_bytes, " B between the passes, workspace ", workspace_bytes, " B");
}

}  // namespace twell::cuda
