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

inline void require_prepared(const void* memory, const char* operation) {
  require(memory != nullptr, operation, "memory", "is null");
  require(reinterpret_cast<std::uintptr_t>(memory) % PreparedMemory::kElement == 0, operation,
          "memory", "is not aligned to ", PreparedMemory::kElement, " bytes");
}

}  // namespace twell
