#include "ops/gate.h"

#include <algorithm>

namespace twell {

void run_gate(const GateBlock& block, const void* prepared, std::int64_t row_begin,
              std::int64_t row_end, std::int64_t tile_begin, std::int64_t tile_end,
              float* accumulators) {
  const GemmArgs x = block.input.args(prepared, row_begin, row_end);
  const std::int64_t tile_panels = block.out.tile / kPanel;
  GemmReluTwellArgs args;
  args.x = x.x;
  args.x_stride = x.x_stride;
  args.rows = x.rows;
  args.weight = x.weight;
  args.panel_begin = tile_begin * tile_panels;
  args.panel_end = std::min(tile_end * tile_panels, packed_panels(x.weight.rows));
  args.activation = block.activation;
  args.out = block.out;
  args.out_row = block.out_row + row_begin;
  args.accumulators = accumulators;
  block.kernel.run(args);
}

}  // namespace twell
