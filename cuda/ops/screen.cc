// Screens of a gate's weight: where what lies, the plan of a gate that has one, and their making.
#include <algorithm>

#include "core/check.h"
#include "cuda/ops/buffers.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {
namespace {

using Tiles = ScreenTiles;

// Beyond, what rounding adds to the bound would have to be derived anew.
constexpr std::int64_t kMostInputs = std::int64_t{1} << 20;

void check_size(const char* operation, std::int64_t rows, std::int64_t cols) {
  require(rows >= 1 && rows <= kMostSize, operation, "rows", "expected 1 to ", kMostSize, ", got ",
          rows);
  require(cols >= 1 && cols <= kMostInputs, operation, "cols", "expected 1 to ", kMostInputs,
          " inputs, got ", cols);
}

DeviceScreen carve_screen(Carver& carver, std::int64_t rows, std::int64_t cols) {
  const std::int64_t groups = ceil_div(rows, Tiles::kNeurons);
  DeviceScreen screen;
  screen.steps = static_cast<int>(ceil_div(cols, Tiles::kStepInputs));
  screen.runs = static_cast<int>(ceil_div(cols, Tiles::kRunInputs));
  screen.levels = carver.take<std::int8_t>(groups * screen.steps * Tiles::kStepBytes);
  screen.along = carver.take<float>(groups * screen.runs * Tiles::kNeurons);
  screen.figures = carver.take<float>(groups * Tiles::kFigures * Tiles::kNeurons);
  screen.axis = carver.take<std::uint16_t>(std::int64_t{screen.runs} * Tiles::kRunInputs);
  return screen;
}

int block_rows(const Problem& problem) {
  return static_cast<int>(round_up(std::max<std::int64_t>(problem.tokens, 1), kVector));
}

// In one block's shared memory.
bool fits(const Device& device, const Problem& problem) {
  const auto bytes = static_cast<std::size_t>(Tiles::shared_bytes(block_rows(problem)));
  return bytes <= device.shared_bytes;
}

bool built(const Problem& problem, std::int32_t tile) {
  const bool packs = tile == 0 || tile == Tiles::kNeurons || tile == Tiles::kNeurons / 2;
  return problem.screened && problem.tokens <= Tiles::kTokens && problem.width <= kMostInputs &&
         packs;
}

}  // namespace

std::size_t screen_bytes(std::int64_t rows, std::int64_t cols) {
  check_size("cuda::screen_bytes", rows, cols);
  Carver measured;
  carve_screen(measured, rows, cols);
  return measured.used();
}

DeviceScreen screen_of(const Expected& expected, const DeviceScreenView& view, std::int64_t rows,
                       std::int64_t cols) {
  require(view.data != nullptr, expected.operation, "screen",
          "expected that of the gate, since the plan is for one, got none");
  require(view.rows == rows && view.cols == cols, expected.operation, "screen",
          "expected that of [", rows, ", ", cols, "], got that of [", view.rows, ", ", view.cols,
          "]");
  const Workspace memory{const_cast<void*>(view.data), screen_bytes(rows, cols)};
  Carver carver(expected.operation, "screen", memory, memory.bytes, expected.trusted);
  return carve_screen(carver, rows, cols);
}

DeviceScreenView make_screen(ConstMatrixView weight, const float* axis, const Workspace& memory,
                             Stream stream) {
  constexpr const char* kOperation = "cuda::make_screen";
  check_size(kOperation, weight.rows, weight.cols);
  require(weight.dtype != DType::f32, kOperation, "weight", "expected bf16 or f16, got f32");
  const bool aligned = is_aligned(weight);
  MakeScreenArgs args;
  args.weight =
      matrix_of({kOperation, weight.dtype, aligned}, "weight", weight, weight.rows, weight.cols);
  if (axis != nullptr) check_device_pointer(kOperation, "axis", axis);
  Carver carver(kOperation, "memory", memory, screen_bytes(weight.rows, weight.cols), false);
  args.axis = axis;
  args.depth = static_cast<int>(weight.cols);
  args.cols = static_cast<int>(weight.rows);
  args.screen = carve_screen(carver, weight.rows, weight.cols);
  launch_make_screen(weight.dtype, aligned, args, static_cast<cudaStream_t>(stream));
  return {memory.data, weight.rows, weight.cols};
}

bool screen_pays(const Device& device, const Problem& problem, std::int32_t tile) {
  return built(problem, tile) && fits(device, problem) &&
         screen_gate_seconds(device, problem) < stream_gate_seconds(device, problem);
}

double candidates_limit(const Device& device, const Problem& problem) {
  Problem call = problem;
  call.screened = true;
  const auto taken = [&](double share) {
    call.candidates = share;
    return plan_ffn(device, call).gemm.shape == GemmShape::screen32x32;
  };
  double taken_at = 0;
  double refused_at = 1;
  if (!taken(taken_at)) return 0;
  if (taken(refused_at)) return 1;
  while (refused_at - taken_at > 1e-6) {
    const double share = (taken_at + refused_at) / 2;
    (taken(share) ? taken_at : refused_at) = share;
  }
  return taken_at;
}

GemmPlan plan_screen_gemm(const Device& device, const Problem& problem, std::int32_t tile) {
  constexpr const char* kOperation = "cuda::plan_gemm_relu_twell";
  require(built(problem, tile), kOperation, "shape",
          "screen 32x32: expected a screened gate, at most ", Tiles::kTokens, " rows, ",
          kMostInputs, " inputs and a tile of 16 or 32, got ",
          problem.screened ? "a screened" : "an unscreened", " gate, ", problem.tokens, " rows, ",
          problem.width, " inputs and ", tile);
  require(fits(device, problem), kOperation, "shape", "screen 32x32: expected ",
          Tiles::shared_bytes(block_rows(problem)), " bytes of shared memory for a block of ",
          block_rows(problem), " rows, the GPU has ", device.shared_bytes);
  GemmPlan plan;
  plan.shape = GemmShape::screen32x32;
  plan.dtype = problem.dtype;
  plan.aligned = problem.aligned;
  plan.block_rows = block_rows(problem);
  plan.block_cols = Tiles::kNeurons;
  plan.threads = Tiles::kThreads;
  plan.shared_bytes = static_cast<std::size_t>(Tiles::shared_bytes(plan.block_rows));
  plan.tile = tile == 0 ? Tiles::kNeurons : tile;
  return plan;
}

}  // namespace twell::cuda
