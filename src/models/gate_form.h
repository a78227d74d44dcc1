// The gate of a sparse layer on the CPU: as stored, with its int8 screen (twell/screen.h), while
// that rules most neurons out; packed for the GEMM where it does not, or where this processor
// multiplies bf16 faster than it would screen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/sparse_operators.h"
#include "twell/device.h"

namespace twell::lm {

class GateForm {
 public:
  // gate [H, D], contiguous. Packs it at once where the tier does not screen.
  GateForm(at::Tensor gate, CpuTier tier, SparseOperands& operands);

  // Before each call, with its x [N, D]: makes the screen when the first inputs are here, and once
  // more where those were few, when there are enough to choose its axis by.
  void prepare(const at::Tensor& x, SparseOperands& operands);
  // What a counted call saw of `rows` tokens. Packs the gate, for good, once the screen has left
  // more than it is worth.
  void update(std::int64_t candidates, std::int64_t rows, SparseOperands& operands);

  // Whether update() has yet to see enough tokens: until then it should be told of every call.
  bool undecided() const;
  bool screens() const { return limit_ > 0; }
  double share() const { return share_; }  // of neurons the screen left; below 0: none seen

 private:
  void screen(SparseOperands& operands) const;
  void pack(SparseOperands& operands);
  bool settled() const;  // the axis

  double limit_;                // 0 once packed
  std::vector<float> axis_;     // sum of the tokens that choose it
  std::int64_t axis_rows_ = 0;  // their number
  std::int64_t seen_ = 0;       // tokens counted
  double share_ = -1.0;
};

}  // namespace twell::lm
