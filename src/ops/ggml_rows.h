// The rows of inputs that ggml_matmul() multiplies, in scratch memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"
#include "twell/context.h"
#include "twell/ggml.h"

namespace twell {

// What kernels want of each row: q and u or the sums of x, and in GgmlOrder::inputs the list of the
// inputs that are not zero.
class GgmlRows {
 public:
  GgmlRows(Context& context, const GgmlLayout& layout, GgmlInputs inputs, std::int64_t rows);

  // x [inputs] outlives the row. Threads may prepare several.
  void prepare(const GgmlKernels& kernels, const float* x, std::int64_t row) const;
  // In GgmlOrder::inputs: how many are not zero.
  std::int64_t count(std::int64_t row) const { return row_at(row).starts[groups_]; }
  GgmlInputRow row(std::int64_t row, const float* x) const;

 private:
  // Where a row has what.
  struct Places {
    float* units;
    float* sums;
    std::int32_t* starts;
    std::int32_t* fired;
    std::int8_t* codes;
  };
  Places row_at(std::int64_t row) const;
  std::int64_t bytes_of_row() const;

  GgmlLayout layout_;
  GgmlInputs inputs_;
  std::int64_t groups_, stride_;
  std::byte* memory_;
};

}  // namespace twell
