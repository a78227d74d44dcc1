// Checking what callers pass, once for all operations.
#pragma once

#include "cuda/kernels/kernels.h"
#include "twell/cuda.h"

namespace twell::cuda {

void check_shape(const char* operation, const char* argument, const ConstMatrixView& view,
                 DType dtype, std::int64_t rows, std::int64_t cols);

// A matrix that must be [rows, cols] of `dtype` in device memory.
struct Expected {
  const char* operation;
  DType dtype;
  bool aligned;
  bool trusted = false;  // its pointers are not looked up
};
DeviceMatrix matrix_of(const Expected& expected, const char* argument, const ConstMatrixView& view,
                       std::int64_t rows, std::int64_t cols);
// One that is written.
void* memory_of(const Expected& expected, const char* argument, const MatrixView& view,
                std::int64_t rows, std::int64_t cols);
std::uint16_t* output_of(const Expected& expected, const MatrixView& view, std::int64_t rows,
                         std::int64_t cols);
// Up as a matrix; without data in a layer without a gate.
inline ConstMatrixView up_of(const FfnWeights& weights) {
  return weights.up ? weights.up->matrix() : ConstMatrixView();
}
// Throws unless up, or its gradient, is there in a gated layer alone.
void require_gated(const char* operation, const char* argument, const ConstMatrixView& up,
                   const Problem& problem);
DeviceTwell twell_of(const char* operation, const char* argument, const DeviceTwellView& view,
                     std::int64_t rows, std::int64_t cols, DType dtype);
// A screen of a weight [rows, cols].
DeviceScreen screen_of(const Expected& expected, const ScreenView& view, std::int64_t rows,
                       std::int64_t cols);
void check_device_pointer(const char* operation, const char* argument, const void* pointer);
// Throws unless the plan was made for the current device.
void check_plan_device(const char* operation, int device);
// Rows that start and end at 16 bytes.
bool is_aligned(const ConstMatrixView& view);

}  // namespace twell::cuda
