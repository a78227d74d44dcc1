// The steps of the layer one by one. The triple is that of torch_ops/twell_tensors.h, except that
// `overflow` has a record for every row and tile where capacity < tile, and none where they are
// equal: how many are needed is not known on the host. Readers go by a record's number, so they
// also take triples that were made on the CPU. What the tensors hold is not checked: that would
// wait for the GPU.
#include <limits>

#include "torch_ops_cuda/ops.h"

namespace twell::torch_ops::on_cuda {
namespace {

std::int32_t in_range(const char* operation, const char* argument, std::int64_t value) {
  if (value < 1 || value > 65536) {
    fail(operation, argument, "expected 1 to 65536, got " + std::to_string(value));
  }
  return static_cast<std::int32_t>(value);
}

// Zeroed where no slot is written, so that the tensors are a function of the matrix alone.
struct Packed {
  Packed(const char* operation, const Tensor& like, TwellLayout wanted)
      : layout(wanted),
        counts(
            new_empty({operation, "counts", like}, {wanted.rows, wanted.tiles()}, ScalarType::Int)),
        slots(new_zeros({operation, "slots", like}, {wanted.rows, wanted.tiles(), wanted.capacity},
                        ScalarType::Int)),
        overflow(new_zeros(
            {operation, "overflow", like},
            {wanted.capacity == wanted.tile ? 0 : wanted.rows * wanted.tiles(), wanted.tile},
            ScalarType::Int)) {
    if (wanted.capacity > wanted.tile) {
      fail(operation, "capacity",
           "expected at most the tile, " + std::to_string(wanted.tile) + ", got " +
               std::to_string(wanted.capacity));
    }
  }
  cuda::DeviceTwellView view() const {
    return {layout, static_cast<std::int32_t*>(counts.mutable_data_ptr()),
            static_cast<std::uint32_t*>(slots.mutable_data_ptr()),
            static_cast<std::uint32_t*>(overflow.mutable_data_ptr())};
  }
  TwellTuple tuple() const { return {counts, slots, overflow}; }

  TwellLayout layout;
  Tensor counts, slots, overflow;
};

TwellLayout layout_of(const char* operation, const ConstMatrixView& like, std::int64_t cols,
                      std::int64_t tile, std::int64_t capacity) {
  TwellLayout layout;
  layout.rows = like.rows;
  layout.cols = cols;
  layout.tile = in_range(operation, "tile", tile);
  layout.capacity = in_range(operation, "capacity", capacity);
  layout.dtype = like.dtype;
  return layout;
}

void require_words(const Argument& argument, const Tensor& like, std::int64_t dims) {
  const Tensor& tensor = argument.tensor;
  if (tensor.is_cuda() && tensor.get_device_index() == like.get_device_index() &&
      tensor.scalar_type() == ScalarType::Int && tensor.dim() == dims && tensor.is_contiguous()) {
    return;
  }
  fail(argument.operation, argument.name,
       "expected a contiguous CUDA tensor of " + std::to_string(dims) +
           " dimensions and dtype Int on the GPU of the other arguments, got shape " +
           shape_of(tensor) + " of " + torch::headeronly::toString(tensor.scalar_type()));
}

// A triple of `cols` columns; rows -1: any number.
cuda::DeviceTwellView view_of(const char* operation, const Tensor& counts, const Tensor& slots,
                              const Tensor& overflow, const Tensor& like, std::int64_t rows,
                              std::int64_t cols, DType dtype) {
  require_words({operation, "counts", counts}, like, 2);
  require_words({operation, "slots", slots}, like, 3);
  require_words({operation, "overflow", overflow}, like, 2);
  cuda::DeviceTwellView view;
  TwellLayout& layout = view.layout;
  layout.rows = counts.size(0);
  layout.cols = cols;
  layout.tile = in_range(operation, "overflow", overflow.size(1));
  layout.capacity = in_range(operation, "slots", slots.size(2));
  layout.dtype = dtype;
  if ((rows >= 0 && layout.rows != rows) || counts.size(1) != layout.tiles()) {
    fail(operation, "counts",
         "expected " + (rows < 0 ? std::string("any") : std::to_string(rows)) + " rows of " +
             std::to_string(layout.tiles()) + " tiles for " + std::to_string(cols) +
             " columns in tiles of " + std::to_string(layout.tile) + ", got shape " +
             shape_of(counts));
  }
  if (slots.size(0) != layout.rows || slots.size(1) != layout.tiles() ||
      layout.capacity > layout.tile) {
    fail(operation, "slots",
         "expected the rows and tiles of counts, " + shape_of(counts) +
             ", and at most a tile's columns, got shape " + shape_of(slots));
  }
  view.counts = static_cast<std::int32_t*>(counts.mutable_data_ptr());
  view.slots = static_cast<std::uint32_t*>(slots.mutable_data_ptr());
  // Without records none is read, but the pointer is checked.
  view.overflow =
      overflow.size(0) == 0 ? view.slots : static_cast<std::uint32_t*>(overflow.mutable_data_ptr());
  return view;
}

// The gather is planned for rows of this problem.
cuda::Problem problem_of(const cuda::DeviceTwellView& packed, const ConstMatrixView& x,
                         const ConstMatrixView& up, const ConstMatrixView& down,
                         const ConstMatrixView& y) {
  cuda::DeviceFfnWeights weights;
  weights.gate = weights.down = down;
  weights.up = up;
  cuda::Problem problem = cuda::problem_of(up.data == nullptr ? y : x, weights, y);
  problem.hidden = packed.layout.cols;
  return problem;
}

}  // namespace

TwellTuple gemm_relu_twell(const Tensor& x, const Tensor& weight_packed, std::int64_t rows,
                           const std::string& activation, double threshold, std::int64_t tile,
                           std::int64_t capacity) {
  constexpr const char* kOperation = "gemm_relu_twell";
  if (rows < 1) fail(kOperation, "rows", "expected 1 or more, got " + std::to_string(rows));
  const ConstMatrixView view = cuda_matrix_of({kOperation, "x", x}, x);
  const ConstMatrixView weight =
      cuda_packed_of({kOperation, "weight_packed", weight_packed}, x, rows, view.cols);
  const ActivationSpec spec = activation_of(kOperation, activation, threshold);
  const TwellLayout layout = layout_of(kOperation, view, rows, tile, capacity);
  const CudaCall call(x);
  const Packed out(kOperation, x, layout);
  cuda::DeviceFfnWeights weights;
  weights.gate = weights.down = weight;
  const cuda::GemmPlan plan =
      cuda::plan_gemm_relu_twell(call.device(), cuda::problem_of(view, weights, view), layout.tile);
  cuda::gemm_relu_twell(plan, view, weight, spec, out.view(), call.stream());
  return out.tuple();
}

Tensor twell_gated_ffn(const Tensor& x, const Tensor& counts, const Tensor& slots,
                       const Tensor& overflow, const Tensor& up, const Tensor& down) {
  constexpr const char* kOperation = "twell_gated_ffn";
  const ConstMatrixView in = cuda_matrix_of({kOperation, "x", x}, x);
  const ConstMatrixView up_view = cuda_matrix_of({kOperation, "up", up}, x);
  const ConstMatrixView down_view = cuda_matrix_of({kOperation, "down", down}, x);
  const cuda::DeviceTwellView gate =
      view_of(kOperation, counts, slots, overflow, x, in.rows, up_view.rows, in.dtype);
  const CudaCall call(x);
  const Tensor y = new_empty({kOperation, "y", x}, {in.rows, in.cols}, x.scalar_type());
  const MatrixView out(y.mutable_data_ptr(), in.dtype, in.rows, in.cols);
  const cuda::GatherPlan plan =
      cuda::plan_gather(call.device(), problem_of(gate, in, up_view, down_view, out));
  const CudaWorkspace workspace(kOperation, x, plan.workspace_bytes(in.rows, in.cols));
  cuda::twell_gated_ffn(plan, in, gate, up_view, down_view, out, workspace.get(), call.stream());
  return y;
}

Tensor twell_spmm(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                  const Tensor& down) {
  constexpr const char* kOperation = "twell_spmm";
  const ConstMatrixView weight = cuda_matrix_of({kOperation, "down", down}, down);
  const cuda::DeviceTwellView hidden =
      view_of(kOperation, counts, slots, overflow, down, -1, weight.rows, weight.dtype);
  const std::int64_t rows = hidden.layout.rows;
  const CudaCall call(down);
  const Tensor y = new_empty({kOperation, "y", down}, {rows, weight.cols}, down.scalar_type());
  const MatrixView out(y.mutable_data_ptr(), weight.dtype, rows, weight.cols);
  const cuda::GatherPlan plan =
      cuda::plan_gather(call.device(), problem_of(hidden, {}, {}, weight, out));
  const CudaWorkspace workspace(kOperation, down, plan.workspace_bytes(rows, weight.cols));
  cuda::twell_spmm(plan, hidden, weight, out, workspace.get(), call.stream());
  return y;
}

TwellTuple dense_to_twell(const Tensor& dense, std::int64_t tile, std::int64_t capacity) {
  constexpr const char* kOperation = "dense_to_twell";
  const ConstMatrixView view = cuda_matrix_of({kOperation, "dense", dense}, dense);
  const TwellLayout layout = layout_of(kOperation, view, view.cols, tile, capacity);
  const CudaCall call(dense);
  const Packed out(kOperation, dense, layout);
  cuda::dense_to_twell(view, out.view(), call.stream());
  return out.tuple();
}

Tensor twell_to_dense(const Tensor& counts, const Tensor& slots, const Tensor& overflow,
                      std::int64_t cols, ScalarType dtype) {
  constexpr const char* kOperation = "twell_to_dense";
  if (dtype != ScalarType::BFloat16 && dtype != ScalarType::Half) {
    fail(kOperation, "dtype",
         std::string("expected dtype bfloat16 or float16 on a GPU, got ") +
             torch::headeronly::toString(dtype));
  }
  if (cols < 1 || cols > std::numeric_limits<std::int32_t>::max()) {
    fail(kOperation, "cols", "expected 1 to 2^31 - 1, got " + std::to_string(cols));
  }
  const DType value = dtype == ScalarType::Half ? DType::f16 : DType::bf16;
  const cuda::DeviceTwellView view =
      view_of(kOperation, counts, slots, overflow, counts, -1, cols, value);
  const CudaCall call(counts);
  const Tensor dense = new_empty({kOperation, "dense", counts}, {view.layout.rows, cols}, dtype);
  cuda::twell_to_dense(view, {dense.mutable_data_ptr(), value, view.layout.rows, cols},
                       call.stream());
  return dense;
}

}  // namespace twell::torch_ops::on_cuda
