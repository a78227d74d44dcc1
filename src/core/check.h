// Building twell::Error messages: one line that names operation, argument, expected and got.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "twell/status.h"
#include "twell/tensor_view.h"

namespace twell {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws Error{invalid_argument} "twell::operation: argument: message" unless `ok`.
template <class... Parts>
void require(bool ok, std::string_view operation, std::string_view argument,
             const Parts&... parts) {
  if (!ok) [[unlikely]] {
    throw Error(ErrorKind::invalid_argument, concat("twell::", operation),
                concat(argument, ": ", parts...));
  }
}

// The dtypes that libtwell computes in.
inline void require_dtype(std::string_view operation, std::string_view argument, DType dtype) {
  require(dtype != DType::f16, operation, argument, "expected bf16 or f32, got f16");
}

// What every operation asks of a matrix, whatever its shape.
inline void require_view(std::string_view operation, std::string_view argument,
                         ConstMatrixView view) {
  require_dtype(operation, argument, view.dtype);
  require(view.row_stride >= view.cols, operation, argument, "row stride ", view.row_stride,
          " is smaller than its ", view.cols, " columns");
  require(view.data != nullptr || view.rows * view.cols == 0, operation, argument, "data is null");
  require(reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0, operation,
          argument, "data is not aligned to its ", size_of(view.dtype), "-byte elements");
}

// A broken invariant of this library: nothing a caller could handle.
#define TWELL_INVARIANT(condition)                                                                \
  do {                                                                                            \
    if (!(condition)) [[unlikely]] {                                                              \
      std::fprintf(stderr, "twell: internal invariant broken at %s:%d: %s\n", __FILE__, __LINE__, \
                   #condition);                                                                   \
      std::abort();                                                                               \
    }                                                                                             \
  } while (false)

}  // namespace twell
