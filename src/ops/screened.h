// The gate of one block of rows by way of its screen (twell/screen.h).
#pragma once

#include "kernels/kernel.h"
#include "ops/gate.h"

namespace twell {

class ScreenedBlock {
 public:
  // Takes its scratch. Does nothing where `weights` has no screen.
  ScreenedBlock(Context& context, const FfnPlan& plan, const FfnWeights& weights);

  // Brings a row of the block to 8 bits.
  void prepare(const GateBlock& block, std::int64_t row) const;
  // As run_gate(), for one tile. Returns the pre-activations that were computed.
  std::int64_t run(const GateBlock& block, std::int64_t row_begin, std::int64_t row_end,
                   std::int64_t tile, int thread) const;

 private:
  Context& context_;
  const FfnWeights& weights_;
  const ScreenedGate* kernel_ = nullptr;
  std::int64_t depth_ = 0;
  std::int64_t blocks_ = 0;
  std::uint8_t* x8_ = nullptr;   // [rows, depth_]
  float* scales_ = nullptr;      // [rows, blocks_]
  ScreenedRow* rows_ = nullptr;  // [rows]
};

}  // namespace twell
