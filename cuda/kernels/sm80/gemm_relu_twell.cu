#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/sm80/gemm_relu_twell.cuh"
#include "cuda/kernels/sm80/gemm_relu_twell_stream.cuh"

namespace twell::cuda {
namespace {

template <class T, class Tiles, bool kAligned>
void launch_tiles(const GemmReluTwellArgs& args, cudaStream_t stream) {
  const int row_tiles = (args.rows + Tiles::kBlockRows - 1) / Tiles::kBlockRows;
  const int col_tiles = (args.cols + Tiles::kBlockCols - 1) / Tiles::kBlockCols;
  launch_kernel(gemm_relu_twell_sm80<T, Tiles, kAligned>,
                {dim3(static_cast<unsigned>(row_tiles) * static_cast<unsigned>(col_tiles)),
                 Tiles::kThreads, Tiles::kSharedBytes, stream},
                args);
}

template <class T, class Tiles, bool kAligned>
void launch_stream(const GemmReluTwellArgs& args, cudaStream_t stream) {
  const int blocks = (args.cols + Tiles::kNeurons - 1) / Tiles::kNeurons;
  launch_kernel(gemm_relu_twell_stream_sm80<T, Tiles, kAligned>,
                {dim3(static_cast<unsigned>(blocks)), Tiles::kThreads, Tiles::kSharedBytes, stream},
                args);
}

// Rows that are not aligned to 16 bytes have one shape for few rows and one for many: they are
// correct, not fast.
template <class T>
void launch_for(const GemmPlan& plan, const GemmReluTwellArgs& args, cudaStream_t stream) {
  switch (plan.shape) {
    case GemmShape::stream8x16:
      return launch_stream<T, Stream8x16, true>(args, stream);
    case GemmShape::stream16x32:
      return launch_stream<T, Stream16x32, true>(args, stream);
    case GemmShape::stream32x32:
      return plan.aligned ? launch_stream<T, Stream32x32, true>(args, stream)
                          : launch_stream<T, Stream32x32, false>(args, stream);
    case GemmShape::tile64x64:
      return plan.aligned ? launch_tiles<T, Tile64x64, true>(args, stream)
                          : launch_tiles<T, Tile64x64, false>(args, stream);
    case GemmShape::tile128x128:
      return launch_tiles<T, Tile128x128, true>(args, stream);
    case GemmShape::library:
    case GemmShape::screen32x32:
      return;  // the operation's, not these kernels'
  }
}

}  // namespace

void launch_gemm_relu_twell(const GemmPlan& plan, const GemmReluTwellArgs& args,
                            cudaStream_t stream) {
  if (plan.dtype == DType::bf16) {
    launch_for<Bf16>(plan, args, stream);
  } else {
    launch_for<F16>(plan, args, stream);
  }
}

}  // namespace twell::cuda
