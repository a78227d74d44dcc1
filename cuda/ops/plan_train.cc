#include <algorithm>

#include "core/check.h"
#include "cuda/ops/planning.h"
#include "cuda/ops/train_buffers.h"

namespace twell::cuda {

std::int64_t turn_places(const Device& device) {
  constexpr std::size_t kSmall = std::size_t{8} << 30;  // where the driver does not tell
  const std::size_t memory = device.memory_bytes > 0 ? device.memory_bytes : kSmall;
  constexpr std::size_t kShare = 64;
  constexpr std::size_t kBytes = sizeof(PlaceGradient) + sizeof(std::uint32_t);
  // Places of a turn are numbered in 31 bits.
  return static_cast<std::int64_t>(
      std::min<std::size_t>(memory / kShare / kBytes, std::size_t{1} << 30));
}

TrainPlan plan_train(const Device& device, const Problem& problem, const TrainOptions& options) {
  constexpr const char* kOperation = "cuda::plan_train";
  check_problem(kOperation, problem);
  require(library_present(), kOperation, "device",
          "libcublasLt.so is not to be found, which training needs; install it, or train on "
          "PyTorch's dense layer");
  require(options.kept_density >= 0 && options.kept_density <= 1, kOperation, "kept_density",
          "expected 0 to 1, got ", options.kept_density);
  require(options.turn_places >= 0, kOperation, "turn_places", "expected 0 or more, got ",
          options.turn_places);
  TrainPlan plan;
  Problem planned = problem;
  if (problem.tokens == 0) planned.hot = 0;
  planned.joined = false;  // g and u are kept, not h
  plan.forward = plan_ffn(device, planned, options.workspace_limit, GemmShape::library);
  const std::int64_t cold = problem.neurons - plan.forward.hot;
  const std::int64_t all = problem.tokens * cold;
  plan.rows = plan_gather_rows(device, planned);
  plan.neuron_blocks = device.sm_count * kGradientBlocks;
  plan.kept_places = static_cast<std::int64_t>(static_cast<double>(all) * options.kept_density);
  plan.turn_places =
      std::clamp<std::int64_t>(options.turn_places > 0 ? options.turn_places : turn_places(device),
                               1, std::max<std::int64_t>(all, 1));
  plan.turns = static_cast<int>(std::max<std::int64_t>(ceil_div(all, plan.turn_places), 1));
  Carver kept;
  carve_kept(kept, plan);
  plan.kept_bytes = kept.used();
  Carver backward;
  carve_backward(backward, plan);
  Carver forward;
  carve_ffn(forward, plan.forward, true);
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
