// Checks that packing and screening of weights share.
#pragma once

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
