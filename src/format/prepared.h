// Checks that packing and screening of weights share.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "twell/packed.h"

namespace twell {

inline void require_weight(const WeightView& w, const char* operation) {
  require(w.rows >= 1 && w.cols >= 1, operation, "w", "expected at least one row and column, got [",
          w.rows, ", ", w.cols, "]");
  require_weight_rows(operation, "w", w);
}

inline void require_prepared(const void* memory, const char* operation,
                             const char* argument = "memory") {
  require(memory != nullptr, operation, argument, "is null");
  require(reinterpret_cast<std::uintptr_t>(memory) % PreparedMemory::kElement == 0, operation,
          argument, "is not aligned to ", PreparedMemory::kElement, " bytes");
}

// Of a type that has scales.
inline void require_scaled_by(const char* operation, const char* argument, const WeightView& w,
                              ScaledBy by) {
  const bool rows = by == ScaledBy::row;
  require(!has_scales(w.type) || w.scaled_by == by, operation, argument, "expected scales of its ",
          rows ? "rows" : "columns", ", got those of its ", rows ? "columns" : "rows");
}
// All of them finite: kernels take codes for numbers that are.
inline void require_finite_scales(const char* operation, const char* argument,
                                  const WeightView& w) {
  if (!has_scales(w.type)) return;
  const bool rows = w.scaled_by == ScaledBy::row;
  const float* const end = w.scales + w.scale_count();
  const float* const bad =
      std::find_if_not(w.scales, end, [](float s) { return std::isfinite(s); });
  require(bad == end, operation, argument, "the scale of ", rows ? "row " : "column ",
          bad - w.scales, " is not finite");
}

// A packed weight with at least one row and column.
inline void require_panels(const char* operation, const char* argument, const WeightView& w) {
  require_weight_type(operation, argument, w.type);
  require(w.layout == WeightLayout::panels, operation, argument,
          "expected a packed weight, got one as stored");
  require(w.rows >= 1 && w.cols >= 1, operation, argument,
          "expected at least one row and column, got [", w.rows, ", ", w.cols, "]");
  require_prepared(w.data, operation, argument);
}

}  // namespace twell
