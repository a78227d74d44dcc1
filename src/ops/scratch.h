// Slots of Context::scratch that the operations use.
#pragma once

namespace twell {

enum ScratchSlot : int {
  kPreparedX,
  kAccumulators,
  kCounts,
  kSlots,
  kActive,
  kPartialY,
  kHotLists,
  kHotHidden,
  kHotSums,
  kHotPanels,
  kScreenedX,
  kCandidates,
};

}  // namespace twell
