// dense_to_twell and twell_to_dense.
#include "core/check.h"
#include "cuda/ops/arguments.h"

namespace twell::cuda {
namespace {

DeviceMatrix checked(const char* operation, const ConstMatrixView& dense) {
  require(dense.dtype != DType::f32, operation, "dense", "expected bf16 or f16, got f32");
  return matrix_of({operation, dense.dtype, false}, "dense", dense, dense.rows, dense.cols);
}

}  // namespace

void dense_to_twell(ConstMatrixView dense, const DeviceTwellView& out, Stream stream) {
  constexpr const char* kOperation = "cuda::dense_to_twell";
  const DeviceMatrix matrix = checked(kOperation, dense);
  PackGateArgs args;
  args.gate.data = matrix.data;
  args.gate.stride = matrix.stride;
  args.gate.aligned = is_aligned(dense);
  args.gate.activates = false;
  args.rows = static_cast<int>(dense.rows);
  args.cols = static_cast<int>(dense.cols);
  args.out = twell_of(kOperation, "twell", out, dense.rows, dense.cols, dense.dtype);
  if (dense.rows > 0) launch_pack_gate(dense.dtype, args, static_cast<cudaStream_t>(stream));
}

void twell_to_dense(const DeviceTwellView& twell, MatrixView dense, Stream stream) {
  constexpr const char* kOperation = "cuda::twell_to_dense";
  const DeviceMatrix matrix = checked(kOperation, dense);
  TwellToDenseArgs args;
  args.dense = const_cast<std::uint16_t*>(matrix.data);  // NOLINT: of a view that is not const
  args.stride = matrix.stride;
  args.rows = static_cast<int>(dense.rows);
  args.cols = static_cast<int>(dense.cols);
  args.twell = twell_of(kOperation, "twell", twell, dense.rows, dense.cols, dense.dtype);
  if (dense.rows > 0) launch_twell_to_dense(args, static_cast<cudaStream_t>(stream));
}

}  // namespace twell::cuda
