// What the operations keep in Context::scratch.
#pragma once

#include "format/twell_view.h"
#include "twell/context.h"
#include "twell/ffn.h"

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
  // ffn_backward() packs no gate: its lists lie where those of a forward pass do.
  kCoefficients = kCounts,
  kTransposed = kSlots,
  kPieces = kCandidates,
  // ggml_matmul() does nothing else.
  kGgmlRowsOfInputs = kPreparedX,
  kGgmlSums = kPartialY,
};

// The packed activation of a block: `rows` rows of tiles of `tile` columns, none of which can
// overflow.
TwellView scratch_activation(Context& context, const FfnShape& shape, std::int64_t rows,
                             std::int32_t tile);

}  // namespace twell
