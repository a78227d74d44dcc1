// Hot neurons in the backward pass: GEMMs over all rows, with an element-wise step after the first.
#include "cuda/kernels/common/check.h"
#include "cuda/ops/backward_call.h"
#include "cuda/ops/library_gemm.h"

namespace twell::cuda {
namespace {

void multiply(const BackwardCall& call, LibraryGemm gemm) {
  library_gemm("cuda::ffn_backward", call.problem().dtype, gemm, call.b.library, call.stream);
}

// Wg and Wu of the hot neurons one below the other, so that dx is one product.
void stack_weights(const BackwardCall& call) {
  const BackwardBuffers& b = call.b;
  const std::int64_t half = b.dv_stride / 2;
  if (half > call.hot()) {  // rows that pad either part
    TWELL_CUDA_CHECK(cudaMemsetAsync(
        b.weights, 0, static_cast<std::size_t>(b.dv_stride * b.weights_stride) * 2, call.stream));
  }
  const DeviceMatrix* weight = &call.gate;
  for (const std::int64_t first : {std::int64_t{0}, half}) {
    TWELL_CUDA_CHECK(cudaMemcpy2DAsync(
        b.weights + first * b.weights_stride, static_cast<std::size_t>(b.weights_stride) * 2,
        weight->data, static_cast<std::size_t>(weight->stride) * 2,
        static_cast<std::size_t>(call.problem().width) * 2, static_cast<std::size_t>(call.hot()),
        cudaMemcpyDeviceToDevice, call.stream));
    weight = &call.up;
  }
}

}  // namespace

void multiply_backward(const BackwardCall& call) {
  const Problem& problem = call.problem();
  const BackwardBuffers& b = call.b;
  const KeptBuffers& kept = call.kept;
  const std::int64_t rows = problem.tokens;
  const std::int64_t half = kept.hot_stride;
  multiply(call, {.a = call.dy,
                  .b = call.down,
                  .c = b.dh,
                  .c_stride = half,
                  .rows = rows,
                  .cols = call.hot(),
                  .depth = problem.width});
  HotBackwardArgs args;
  args.g = kept.hot_g;
  args.u = kept.hot_u;
  args.dh = b.dh;
  args.h = b.h;
  args.dv = b.dv;
  args.du = b.dv + half;
  args.stride = half;
  args.dv_stride = b.dv_stride;
  args.rows = static_cast<int>(rows);
  args.cols = static_cast<int>(call.hot());
  args.activation = call.activation;
  args.l1 = call.l1;
  launch_hot_backward(problem.dtype, args, call.stream);

  if (problem.gated) stack_weights(call);
  const bool all_hot = call.hot() == problem.neurons;
  multiply(call, {.a = {b.dv, b.dv_stride},
                  .b = problem.gated ? DeviceMatrix{b.weights, b.weights_stride} : call.gate,
                  .b_by_depth = true,
                  .c = all_hot ? static_cast<void*>(call.dx) : b.sums,
                  .c_stride = all_hot ? call.dx_stride : b.sums_stride,
                  .wide = !all_hot,
                  .rows = rows,
                  .cols = problem.width,
                  .depth = problem.gated ? b.dv_stride : call.hot()});
  const auto weight_gradient = [&](const std::uint16_t* values, std::int64_t stride,
                                   const DeviceMatrix& inputs, const WeightGradient& to) {
    multiply(call, {.a = {values, stride},
                    .b = inputs,
                    .a_by_depth = true,
                    .b_by_depth = true,
                    .c = to.data,
                    .c_stride = to.stride,
                    .wide = call.wide,
                    .adds = call.accumulate,
                    .rows = call.hot(),
                    .cols = problem.width,
                    .depth = rows});
  };
  weight_gradient(b.dv, b.dv_stride, call.x, call.dgate);
  if (problem.gated) weight_gradient(args.du, b.dv_stride, call.x, call.dup);
  weight_gradient(b.h, half, call.dy, call.ddown);
}

}  // namespace twell::cuda
