// dense_to_twell and twell_to_dense.
#include "core/check.h"
#include "cuda_ops/arguments.h"

namespace twell::cuda {
namespace {

TwellDenseArgs arguments(const char* operation, const DeviceTwellView& twell,
                         const ConstMatrixView& dense) {
  const Expected expected{operation, dense.dtype, false};
  TwellDenseArgs args;
  require(dense.dtype != DType::f32, operation, "dense", "expected bf16 or f16, got f32");
  const DeviceMatrix matrix = matrix_of(expected, "dense", dense, dense.rows, dense.cols);
  args.dense = const_cast<std::uint16_t*>(matrix.data);  // NOLINT: dense_to_twell only reads
  args.stride = matrix.stride;
  args.rows = static_cast<int>(dense.rows);
  args.cols = static_cast<int>(dense.cols);
  args.twell = twell_of(operation, "twell", twell, dense.rows, dense.cols, dense.dtype);
  return args;
}

}  // namespace

void dense_to_twell(ConstMatrixView dense, const DeviceTwellView& out, Stream stream) {
  const TwellDenseArgs args = arguments("cuda::dense_to_twell", out, dense);
  if (dense.rows > 0) launch_dense_to_twell(args, static_cast<cudaStream_t>(stream));
}

void twell_to_dense(const DeviceTwellView& twell, MatrixView dense, Stream stream) {
  const TwellDenseArgs args = arguments("cuda::twell_to_dense", twell, dense);
  if (dense.rows > 0) launch_twell_to_dense(args, static_cast<cudaStream_t>(stream));
}

}  // namespace twell::cuda
