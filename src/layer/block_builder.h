// How a LayerBlock comes to be: up, down and vectors are placed first, and the gate gets its form
// once it is known what inputs show.
#pragma once

#include <optional>

#include "twell/layer_block.h"

namespace twell {

// Findings of such a layer, whose numbers are possible ones.
void require_findings(const char* operation, const LayerFindings& findings, const FfnShape& shape);

class BlockBuilder {
 public:
  // Checks everything, and places all but the gate, which is packed at once where no screen comes
  // into question. `operation`: named by errors.
  BlockBuilder(const char* operation, const Context& context, const StoredWeights& weights,
               const FfnForm& form, const BlockOptions& options);

  const FfnShape& shape() const { return placed_.shape_; }
  // The layer so far. Its gate is as stored, without a screen, while reads_gate().
  const LayerBlock& placed() const { return placed_; }
  bool reads_gate() const { return placed_.gate_form() != GateForm::packed; }

  // Packs the gate if it is not yet, or gives it a screen where the findings call for one: `screen`
  // if there is one already, else that with the axis of the findings. `context`: whose threads
  // work; null: OpenMP's.
  LayerBlock build(const Context* context, const LayerFindings* findings,
                   const std::optional<Screen>& screen = {});
  // The same block with these findings.
  static LayerBlock with(const LayerBlock& block, const LayerFindings& findings);

  // A block of what view() has read.
  static LayerBlock of(const FfnShape& shape, const FfnWeights& weights, const FfnForm& form,
                       std::shared_ptr<const LayerFindings> findings,
                       std::shared_ptr<const void> owner, std::int64_t own_bytes);

 private:
  void pack(const Context* context);

  const char* operation_;
  CpuTier tier_;
  LayerBlock placed_;
};

}  // namespace twell
