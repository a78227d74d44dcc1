#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "cuda/ops/buffers.h"
#include "cuda/ops/library_gemm.h"
#include "cuda/ops/planning.h"
#include "cuda/ops/run.h"

namespace twell::cuda {
namespace {

constexpr const char* kGemmReluTwell = "cuda::gemm_relu_twell";

void run_library(const GemmPlan& plan, const GemmReluTwellArgs& args, Carver& carver,
                 cudaStream_t stream) {
  void* library = carver.take<std::byte>(kLibraryWorkspace);
  PackGateArgs pack;
  pack.gate.stride = round_up(args.cols, kVector);
  pack.gate.wide = plan.wide;
  pack.gate.activation = args.activation;
  void* gate = carver.take<std::byte>(plan.block_rows * pack.gate.stride * (plan.wide ? 4 : 2));
  pack.gate.data = gate;
  pack.cols = args.cols;
  pack.out = args.out;
  LibraryGemm gemm = {.a = args.x,
                      .b = args.weight,
                      .c = gate,
                      .c_stride = pack.gate.stride,
                      .wide = plan.wide,
                      .cols = args.cols,
                      .depth = args.depth};
  for (int first = 0; first < args.rows; first += plan.block_rows) {
    pack.first_row = first;
    pack.rows = std::min(plan.block_rows, args.rows - first);
    gemm.rows = pack.rows;
    gemm.a.data = args.x.data + first * args.x.stride;
    library_gemm(kGemmReluTwell, plan.dtype, gemm, library, stream);
    launch_pack_gate(plan.dtype, pack, stream);
  }
}

}  // namespace

ActivationArgs activation_args(const char* operation, const ActivationSpec& activation) {
  const float kept_above = activation.kept_above();
  require(kept_above >= 0 && std::isfinite(kept_above), operation, "activation",
          "expected a threshold of 0 or more, got ", kept_above);
  return {kept_above, activation.kind};
}

void check_activation(const char* operation, const GemmPlan& plan,
                      const ActivationSpec& activation) {
  require(plan.shape != GemmShape::library || plan.wide || activation.kind == Activation::relu,
          operation, "activation", "expected relu, for which the plan is, got ",
          name_of(activation.kind), "; plan with it");
}

void launch_gate(const GemmPlan& plan, const GemmReluTwellArgs& args, cudaStream_t stream) {
  const bool screened = plan.shape == GemmShape::screen32x32;
  (screened ? launch_screen_relu_twell : launch_gemm_relu_twell)(plan, args, stream);
}

void gemm_relu_twell(const GemmPlan& plan, ConstMatrixView x, ConstMatrixView weight,
                     const ActivationSpec& activation, const DeviceTwellView& out,
                     const Workspace& workspace, Stream stream_handle, const ScreenView& screen) {
  const Expected expected{kGemmReluTwell, plan.dtype, plan.aligned};
  auto* stream = static_cast<cudaStream_t>(stream_handle);
  GemmReluTwellArgs args;
  args.x = matrix_of(expected, "x", x, x.rows, weight.cols);
  args.weight = matrix_of(expected, "weight", weight, weight.rows, x.cols);
  args.rows = static_cast<int>(x.rows);
  args.depth = static_cast<int>(x.cols);
  args.cols = static_cast<int>(weight.rows);
  args.activation = activation_args(kGemmReluTwell, activation);
  check_activation(kGemmReluTwell, plan, activation);
  args.out = twell_of(kGemmReluTwell, "out", out, x.rows, weight.rows, plan.dtype);
  args.raster_group = plan.raster_group;
  require(out.layout.tile == plan.tile, kGemmReluTwell, "out", "expected the plan's tile ",
          plan.tile, ", got ", out.layout.tile);
  require(!streams(plan) || x.rows <= plan.block_rows, kGemmReluTwell, "plan",
          "expected a plan for ", x.rows, " rows, got one for at most ", plan.block_rows);
  require(plan.shape != GemmShape::library || weight.rows <= plan.block_cols, kGemmReluTwell,
          "plan", "expected a plan for ", weight.rows, " neurons, got one for ", plan.block_cols);
  if (plan.shape == GemmShape::screen32x32) {
    args.screen = screen_of(expected, screen, weight.rows, weight.cols);
  }
  Carver carver(kGemmReluTwell, "workspace", workspace, plan.workspace_bytes, false);
  if (x.rows == 0) return;
  if (plan.shape == GemmShape::library) {
    run_library(plan, args, carver, stream);
  } else {
    launch_gate(plan, args, stream);
  }
}

}  // namespace twell::cuda
