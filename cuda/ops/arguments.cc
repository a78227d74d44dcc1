#include "cuda/ops/arguments.h"

#include "core/check.h"
#include "cuda/kernels/common/check.h"

namespace twell::cuda {
namespace {

constexpr std::uintptr_t kVectorBytes = 16;

bool starts_at(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;  // NOLINT
}

void check_matrix(const Expected& expected, const char* argument, const ConstMatrixView& view,
                  std::int64_t rows, std::int64_t cols) {
  check_shape(expected.operation, argument, view, expected.dtype, rows, cols);
  require(view.row_stride >= view.cols || view.rows <= 1, expected.operation, argument,
          "expected a row stride of at least ", view.cols, ", got ", view.row_stride);
  if (view.rows == 0) return;
  if (!expected.trusted) check_device_pointer(expected.operation, argument, view.data);
  require(view.data != nullptr, expected.operation, argument, "data is null");
  const std::size_t bytes = size_of(expected.dtype);
  require(starts_at(view.data, bytes), expected.operation, argument,
          "expected an address that is a multiple of ", bytes, " bytes");
  require(!expected.aligned || is_aligned(view), expected.operation, argument,
          "expected address and row stride to be multiples of 16 bytes, since the plan is for "
          "aligned rows; plan with aligned = false");
}

}  // namespace

void check_shape(const char* operation, const char* argument, const ConstMatrixView& view,
                 DType dtype, std::int64_t rows, std::int64_t cols) {
  require(view.dtype == dtype && view.rows == rows && view.cols == cols, operation, argument,
          "expected ", name_of(dtype), " [", rows, ", ", cols, "], got ", name_of(view.dtype), " [",
          view.rows, ", ", view.cols, "]");
}

bool is_aligned(const ConstMatrixView& view) {
  return view.cols % kVector == 0 && starts_at(view.data, kVectorBytes) &&
         (view.row_stride % kVector == 0 || view.rows <= 1);
}

void check_device_pointer(const char* operation, const char* argument, const void* pointer) {
  require(pointer != nullptr, operation, argument, "expected device memory, got a null pointer");
  cudaPointerAttributes attributes = {};
  TWELL_CUDA_CHECK(cudaPointerGetAttributes(&attributes, pointer));
  const bool reachable =
      attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
  require(reachable, operation, argument,
          "expected memory of the GPU, got host memory; copy it there first");
  if (attributes.type == cudaMemoryTypeDevice) {
    int current = 0;
    TWELL_CUDA_CHECK(cudaGetDevice(&current));
    require(attributes.device == current, operation, argument,
            "expected memory of the current GPU ", current, ", got memory of GPU ",
            attributes.device);
  }
}

DeviceMatrix matrix_of(const Expected& expected, const char* argument, const ConstMatrixView& view,
                       std::int64_t rows, std::int64_t cols) {
  check_matrix(expected, argument, view, rows, cols);
  return {static_cast<const std::uint16_t*>(view.data), view.row_stride};
}

void* memory_of(const Expected& expected, const char* argument, const MatrixView& view,
                std::int64_t rows, std::int64_t cols) {
  check_matrix(expected, argument, view, rows, cols);
  return view.data;
}

std::uint16_t* output_of(const Expected& expected, const MatrixView& view, std::int64_t rows,
                         std::int64_t cols) {
  return static_cast<std::uint16_t*>(memory_of(expected, "y", view, rows, cols));
}

void require_gated(const char* operation, const char* argument, const ConstMatrixView& up,
                   const Problem& problem) {
  require((up.data != nullptr) == problem.gated, operation, argument,
          problem.gated ? "expected it, since the plan is for a gated layer"
                        : "expected none, since the plan is for a layer without gate");
}

DeviceTwell twell_of(const char* operation, const char* argument, const DeviceTwellView& view,
                     std::int64_t rows, std::int64_t cols, DType dtype) {
  const TwellLayout& layout = view.layout;
  layout.validate();
  require(layout.rows == rows && layout.cols == cols, operation, argument, "expected a layout of [",
          rows, ", ", cols, "], got [", layout.rows, ", ", layout.cols, "]");
  require(layout.dtype == dtype, operation, argument, "expected a layout of ", name_of(dtype),
          ", got ", name_of(layout.dtype));
  // Records are numbered in 32 bits.
  require(rows * layout.tiles() < (std::int64_t{1} << 32), operation, argument,
          "expected below 2^32 ", "tiles, got ", rows * layout.tiles(), "; split the rows");
  if (rows > 0) {
    check_device_pointer(operation, argument, view.counts);
    check_device_pointer(operation, argument, view.slots);
    if (overflow_words(layout) > 0) check_device_pointer(operation, argument, view.overflow);
  }
  DeviceTwell out;
  out.counts = view.counts;
  out.slots = view.slots;
  out.overflow = view.overflow;
  out.tiles = static_cast<int>(layout.tiles());
  out.tile = layout.tile;
  out.capacity = layout.capacity;
  return out;
}

void check_plan_device(const char* operation, int device) {
  int current = 0;
  TWELL_CUDA_CHECK(cudaGetDevice(&current));
  require(device == current, operation, "plan", "expected one for the current GPU ", current,
          ", got one for GPU ", device, "; plan for each GPU");
}

}  // namespace twell::cuda
