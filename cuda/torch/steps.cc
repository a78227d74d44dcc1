// torch_ops/steps.h on CUDA tensors. The triple is that of torch_ops/twell_tensors.h, except that
// `overflow` has a record for every row and tile where capacity < tile, and none where they are
// equal: how many are needed is not known on the host. Readers go by a record's number, so they
// also take triples that were made on the CPU. What the tensors hold is not checked: that would
// wait for the GPU.
#include "torch_ops/steps.h"

#include <limits>

#include "cuda/torch/cuda_call.h"

namespace twell::torch_ops {
namespace {

cuda::DeviceTwellView view_of(const TwellLayout& layout, const TwellTensors& tensors) {
  const auto& [counts, slots, overflow] = tensors;
  return {
      layout, static_cast<std::int32_t*>(counts.mutable_data_ptr()),
      static_cast<std::uint32_t*>(slots.mutable_data_ptr()),
      // Without records none is read, but the pointer is checked.
      static_cast<std::uint32_t*>((overflow.size(0) == 0 ? slots : overflow).mutable_data_ptr())};
}

// Zeroed where no slot is written, so that the tensors are a function of the matrix alone.
TwellTensors new_tensors(const char* operation, const Tensor& like, const TwellLayout& layout) {
  const std::int64_t tiles = layout.tiles();
  const std::int64_t records = layout.capacity == layout.tile ? 0 : layout.rows * tiles;
  return {
      new_empty({operation, "counts", like}, {layout.rows, tiles}, ScalarType::Int),
      new_zeros({operation, "slots", like}, {layout.rows, tiles, layout.capacity}, ScalarType::Int),
      new_zeros({operation, "overflow", like}, {records, layout.tile}, ScalarType::Int)};
}

// The gather is planned for rows of this problem.
cuda::Problem problem_of(const cuda::DeviceTwellView& packed, const ConstMatrixView& x,
                         const ConstMatrixView& up, const ConstMatrixView& down,
                         const ConstMatrixView& y) {
  cuda::DeviceFfnWeights weights;
  weights.gate = weights.down = down;
  weights.up = up;
  cuda::Problem problem = cuda::problem_of(up.data == nullptr ? y : x, weights, y);
  problem.neurons = packed.layout.cols;
  return problem;
}

}  // namespace

TwellTensors gemm_relu_twell(const Tensor& x, const Tensor& weight_packed,
                             const std::string& activation, double threshold, std::int64_t tile,
                             std::int64_t capacity) {
  constexpr const char* kOperation = "gemm_relu_twell";
  const ConstMatrixView view = matrix_of({kOperation, "x", x, &x});
  const ConstMatrixView weight = padded_of({kOperation, "weight_packed", weight_packed, &x});
  const ActivationSpec spec = activation_of(kOperation, activation, threshold);
  const TwellLayout layout = layout_of(kOperation, view, weight.rows, tile, capacity);
  const CudaCall call(x);
  const TwellTensors out = new_tensors(kOperation, x, layout);
  cuda::DeviceFfnWeights weights;
  weights.gate = weights.down = weight;
  const cuda::GemmPlan plan = cuda::plan_gemm_relu_twell(
      call.device(), cuda::problem_of(view, weights, view, spec), layout.tile);
  const CudaWorkspace workspace(kOperation, x, plan.workspace_bytes);
  cuda::gemm_relu_twell(plan, view, weight, spec, view_of(layout, out), workspace.get(),
                        call.stream());
  return out;
}

Tensor twell_gated_ffn(const Tensor& x, const Tensor& counts, const Tensor& slots,
                       const Tensor& overflow, const Tensor& up, const Tensor& down) {
  constexpr const char* kOperation = "twell_gated_ffn";
  const ConstMatrixView in = matrix_of({kOperation, "x", x, &x});
  const ConstMatrixView up_view = matrix_of({kOperation, "up", up, &x});
  const ConstMatrixView down_view = matrix_of({kOperation, "down", down, &x});
  const TwellTensors packed{counts, slots, overflow};
  const cuda::DeviceTwellView gate =
      view_of(layout_of(kOperation, packed, up_view.rows, in.dtype, &x), packed);
  if (gate.layout.rows != in.rows) {
    fail(kOperation, "counts",
         "expected " + std::to_string(in.rows) + " rows, as x has, got shape " + shape_of(counts));
  }
  const CudaCall call(x);
  const Tensor y = new_empty({kOperation, "y", x}, {in.rows, in.cols}, x.scalar_type());
  const MatrixView out(y.mutable_data_ptr(), in.dtype, in.rows, in.cols);
  const cuda::GatherPlan plan =
      cuda::plan_gather(call.device(), problem_of(gate, in, up_view, down_view, out));
  const CudaWorkspace workspace(kOperation, x, plan.workspace_bytes(in.rows));
  cuda::twell_gated_ffn(plan, in, gate, up_view, down_view, out, workspace.get(), call.stream());
  return y;
}

Tensor twell_spmm(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                  const Tensor& down) {
  constexpr const char* kOperation = "twell_spmm";
  const ConstMatrixView weight = matrix_of({kOperation, "down", down, &down});
  const TwellTensors packed{counts, slots, overflow};
  const cuda::DeviceTwellView hidden =
      view_of(layout_of(kOperation, packed, weight.rows, weight.dtype, &down), packed);
  const std::int64_t rows = hidden.layout.rows;
  const CudaCall call(down);
  const Tensor y = new_empty({kOperation, "y", down}, {rows, weight.cols}, down.scalar_type());
  const MatrixView out(y.mutable_data_ptr(), weight.dtype, rows, weight.cols);
  const cuda::GatherPlan plan =
      cuda::plan_gather(call.device(), problem_of(hidden, {}, {}, weight, out));
  const CudaWorkspace workspace(kOperation, down, plan.workspace_bytes(rows));
  cuda::twell_spmm(plan, hidden, weight, out, workspace.get(), call.stream());
  return y;
}

TwellTensors dense_to_twell(const Tensor& dense, std::int64_t tile, std::int64_t capacity) {
  constexpr const char* kOperation = "dense_to_twell";
  const ConstMatrixView view = matrix_of({kOperation, "dense", dense, &dense});
  const TwellLayout layout = layout_of(kOperation, view, view.cols, tile, capacity);
  const CudaCall call(dense);
  const TwellTensors out = new_tensors(kOperation, dense, layout);
  cuda::dense_to_twell(view, view_of(layout, out), call.stream());
  return out;
}

Tensor twell_to_dense(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                      std::int64_t cols, ScalarType dtype) {
  constexpr const char* kOperation = "twell_to_dense";
  const DType value = dtype_of(kOperation, "dtype", dtype, true);
  if (cols < 1 || cols > std::numeric_limits<std::int32_t>::max()) {
    fail(kOperation, "cols", "expected 1 to 2^31 - 1, got " + std::to_string(cols));
  }
  const TwellTensors packed{counts, slots, overflow};
  const cuda::DeviceTwellView view =
      view_of(layout_of(kOperation, packed, cols, value, &counts), packed);
  const CudaCall call(counts);
  const Tensor dense = new_empty({kOperation, "dense", counts}, {view.layout.rows, cols}, dtype);
  cuda::twell_to_dense(view, {dense.mutable_data_ptr(), value, view.layout.rows, cols},
                       call.stream());
  return dense;
}

}  // namespace twell::torch_ops
