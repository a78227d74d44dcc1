// Building twell::Error messages: one line that names operation, argument, expected and got.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "twell/status.h"
#include "twell/tensor_view.h"
#include "twell/weight.h"

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

// The types of weights that libtwell multiplies with.
inline void require_weight_type(std::string_view operation, std::string_view argument,
                                WeightType type) {
  require(type != WeightType::f16, operation, argument, "expected bf16, f32 or codes, got f16");
}
// Those that it trains.
inline void require_float_weight(std::string_view operation, std::string_view argument,
                                 WeightType type) {
  require(type == WeightType::bf16 || type == WeightType::f32, operation, argument,
          "expected bf16 or f32, got ", name_of(type));
}

// What every operation asks of rows of so many bytes an element, whatever their shape.
template <class View>
void require_rows(std::string_view operation, std::string_view argument, const View& view,
                  std::size_t element) {
  require(view.rows >= 0 && view.cols >= 0, operation, argument, "expected a shape, got [",
          view.rows, ", ", view.cols, "]");
  require(view.row_stride >= view.cols, operation, argument, "row stride ", view.row_stride,
          " is smaller than its ", view.cols, " columns");
  require(view.data != nullptr || view.rows == 0 || view.cols == 0, operation, argument,
          "data is null");
  require(reinterpret_cast<std::uintptr_t>(view.data) % element == 0, operation, argument,
          "data is not aligned to its ", element, "-byte elements");
}
inline void require_view(std::string_view operation, std::string_view argument,
                         ConstMatrixView view) {
  require_dtype(operation, argument, view.dtype);
  require_rows(operation, argument, view, size_of(view.dtype));
}
inline void require_weight_rows(std::string_view operation, std::string_view argument,
                                const WeightView& view) {
  require_weight_type(operation, argument, view.type);
  require(view.layout == WeightLayout::rows, operation, argument,
          "expected a weight as stored, got a packed one");
  require_rows(operation, argument, view, static_cast<std::size_t>(element_bytes(view.type)));
  require(!in_blocks(view.type) || (view.cols % 32 == 0 && view.row_stride % 32 == 0), operation,
          argument, name_of(view.type), " has whole blocks of 32 columns, got ", view.cols);
  require(!has_scales(view.type) || view.scales != nullptr, operation, argument, name_of(view.type),
          " without scales");
}

// No element of `y` may be one of `x`: rows of the one are written while others of the other are
// still read. Slices of columns of one matrix are apart, although their memory interleaves.
inline void require_apart(std::string_view operation, std::string_view y_name, ConstMatrixView y,
                          std::string_view x_name, ConstMatrixView x) {
  if (x.rows * x.cols == 0 || y.rows * y.cols == 0) return;
  const auto first = [](ConstMatrixView m) { return reinterpret_cast<std::uintptr_t>(m.data); };
  const auto bytes = [](ConstMatrixView m, std::int64_t elements) {
    return static_cast<std::uintptr_t>(elements) * size_of(m.dtype);
  };
  const auto end = [&](ConstMatrixView m) {
    return first(m) + bytes(m, (m.rows - 1) * m.row_stride + m.cols);
  };
  bool apart = end(x) <= first(y) || end(y) <= first(x);
  const std::uintptr_t stride = bytes(x, x.row_stride);
  if (!apart && stride > 0 && stride == bytes(y, y.row_stride)) {
    // The later one starts so far into a row of the other.
    const bool x_first = first(x) <= first(y);
    const std::uintptr_t into = (x_first ? first(y) - first(x) : first(x) - first(y)) % stride;
    apart = into >= bytes(x_first ? x : y, (x_first ? x : y).cols) &&
            into + bytes(x_first ? y : x, (x_first ? y : x).cols) <= stride;
  }
  require(apart, operation, y_name, "overlaps ", x_name, " in memory; give it memory of its own");
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
