// Plans of the gate GEMM: which shape. Pure functions of the device's figures and the problem.
#include <algorithm>
#include <array>

#include "core/check.h"
#include "cuda/kernels/shapes.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {
namespace {

// What a plan knows of a shape. `rate` is the share of what mma.sync can reach that its tensor
// cores do while their operands stream in: measured on an H100.
struct ShapeInfo {
  GemmShape shape;
  int rows, cols, threads, stages;
  std::size_t shared;
  double rate;
};

template <class Tiles>
constexpr ShapeInfo tiles_info(GemmShape shape, double rate) {
  return {shape,
          Tiles::kBlockRows,
          Tiles::kBlockCols,
          Tiles::kThreads,
          Tiles::kStages,
          Tiles::kSharedBytes,
          rate};
}
template <class Tiles>
constexpr ShapeInfo stream_info(GemmShape shape) {
  return {shape, Tiles::kTokens, Tiles::kNeurons, Tiles::kThreads, 0, Tiles::kSharedBytes, 0.0};
}

constexpr std::array kStreamShapes = {stream_info<Stream8x16>(GemmShape::stream8x16),
                                      stream_info<Stream16x32>(GemmShape::stream16x32),
                                      stream_info<Stream32x32>(GemmShape::stream32x32)};
constexpr std::array kTileShapes = {tiles_info<Tile128x128>(GemmShape::tile128x128, 0.7),
                                    tiles_info<Tile64x64>(GemmShape::tile64x64, 0.5)};

GemmPlan plan_of(const ShapeInfo& info, const Problem& problem, std::int32_t tile) {
  GemmPlan plan;
  plan.shape = info.shape;
  plan.dtype = problem.dtype;
  plan.aligned = problem.aligned;
  plan.block_rows = info.rows;
  plan.block_cols = info.cols;
  plan.threads = info.threads;
  plan.stages = info.stages;
  plan.shared_bytes = info.shared;
  // 8 row tiles of 128 rows of x are 4 MB at 2,048 inputs: with as many columns of W they stay in
  // L2.
  plan.raster_group = 1024 / std::max(info.rows, 64);
  plan.rate = info.rate;
  plan.tile = tile == 0 ? info.cols : tile;
  return plan;
}

// One shape for few rows and one for many.
constexpr bool built_unaligned(GemmShape shape) {
  return shape == GemmShape::stream32x32 || shape == GemmShape::tile64x64;
}

void check_tile(const char* operation, std::int32_t tile) {
  require(tile == 0 || (tile >= 16 && tile <= kMostListed && tile % 16 == 0), operation, "tile",
          "expected a multiple of 16 up to ", kMostListed, ", or 0 for the plan's choice, got ",
          tile);
}

// The packing epilogue gives a tile 2, 4, 8 or 16 lanes.
bool packs(const ShapeInfo& info, std::int32_t tile) {
  return tile == 0 || ((tile & (tile - 1)) == 0 && info.cols % tile == 0);
}

}  // namespace

GemmPlan plan_gemm_relu_twell(const Device& device, const Problem& problem, std::int32_t tile) {
  constexpr const char* kOperation = "cuda::plan_gemm_relu_twell";
  check_problem(kOperation, problem);
  check_tile(kOperation, tile);
  const auto serves = [&](const ShapeInfo& info) {
    return packs(info, tile) && info.shared <= device.shared_bytes &&
           (problem.aligned || built_unaligned(info.shape));
  };
  for (const ShapeInfo& info : kStreamShapes) {
    if (problem.tokens > info.rows || !serves(info)) continue;
    if (screen_pays(device, problem, tile)) return plan_screen_gemm(device, problem, tile);
    return plan_of(info, problem, tile);
  }
  const ShapeInfo* best = nullptr;
  double seconds = 0;
  for (const ShapeInfo& info : kTileShapes) {
    if (!serves(info)) continue;
    const double own = tile_gate_seconds(device, problem, {info.rows, info.cols, info.rate});
    if (best == nullptr || own < seconds) {
      best = &info;
      seconds = own;
    }
  }
  if (library_present() && (tile != 0 || problem.neurons <= kMostListed)) {
    const GemmPlan plan = plan_library_gemm(device, problem, tile);
    if (best == nullptr || library_gate_seconds(device, problem, plan) < seconds) return plan;
  }
  if (best == nullptr) {
    throw Error(ErrorKind::unsupported, kOperation,
                concat("tile: ", tile,
                       " needs cuBLASLt, and libcublasLt.so is not to be found; "
                       "install it, or choose a tile of 16, 32 or 64"));
  }
  return plan_of(*best, problem, tile);
}

GemmPlan plan_gemm_relu_twell(GemmShape shape, const Device& device, const Problem& problem,
                              std::int32_t tile) {
  constexpr const char* kOperation = "cuda::plan_gemm_relu_twell";
  check_problem(kOperation, problem);
  check_tile(kOperation, tile);
  if (shape == GemmShape::library) return plan_library_gemm(device, problem, tile);
  if (shape == GemmShape::screen32x32) return plan_screen_gemm(device, problem, tile);
  const auto of_shape = [&](const ShapeInfo& info) { return info.shape == shape; };
  const auto* stream = std::find_if(kStreamShapes.begin(), kStreamShapes.end(), of_shape);
  const bool streams = stream != kStreamShapes.end();
  const ShapeInfo& info =
      streams ? *stream : *std::find_if(kTileShapes.begin(), kTileShapes.end(), of_shape);
  require(!streams || problem.tokens <= info.rows, kOperation, "shape", "expected at most ",
          info.rows, " rows for ", name_of(shape), ", got ", problem.tokens);
  require(problem.aligned || built_unaligned(shape), kOperation, "shape",
          "expected stream 32x32, tile 64x64 or library, which read unaligned rows, got ",
          name_of(shape));
  require(packs(info, tile), kOperation, "tile", "expected 16 to ", info.cols,
          ", a power of two, got ", tile);
  return plan_of(info, problem, tile);
}

}  // namespace twell::cuda
