#include "ops/screened.h"

#include <algorithm>

namespace twell {

ScreenedBlock::ScreenedBlock(Context& context, const FfnPlan& plan, const FfnWeights& weights)
    : context_(context), weights_(weights) {
  if (!weights.screened()) return;
  kernel_ = &screened_gate_kernel(plan.tier, weights.gate.dtype);
  depth_ = screen_depth(weights.gate.cols);
  blocks_ = screen_blocks(weights.gate.cols);
  const auto count = static_cast<std::size_t>(plan.row_block);
  const std::size_t bytes = count * static_cast<std::size_t>(depth_);
  const std::size_t scales = count * static_cast<std::size_t>(blocks_) * sizeof(float);
  x8_ = static_cast<std::uint8_t*>(
      context.scratch(0, kScreenedX, bytes + scales + count * sizeof(ScreenedRow)));
  scales_ = reinterpret_cast<float*>(x8_ + bytes);
  rows_ = reinterpret_cast<ScreenedRow*>(x8_ + bytes + scales);
  for (int t = 0; t < plan.threads; ++t) {
    context.scratch(t, kCandidates,
                    static_cast<std::size_t>(screened_gate_scratch(plan.row_block)));
  }
}

void ScreenedBlock::prepare(const GateBlock& block, std::int64_t row) const {
  kernel_->prepare(rows_of(block.input.x, row, 1).data, weights_.screen, x8_ + row * depth_,
                   scales_ + row * blocks_, rows_ + row);
}

std::int64_t ScreenedBlock::run(const GateBlock& block, std::int64_t row_begin,
                                std::int64_t row_end, std::int64_t tile, int thread) const {
  const std::int64_t tile_panels = block.out.tile / kPanel;
  ScreenedGateArgs args;
  args.x = rows_of(block.input.x, row_begin, row_end - row_begin);
  args.x8 = x8_ + row_begin * depth_;
  args.x8_scales = scales_ + row_begin * blocks_;
  args.x8_rows = rows_ + row_begin;
  args.weight = weights_.gate_rows;
  args.screen = weights_.screen;
  args.panel_begin = tile * tile_panels;
  args.panel_end = std::min((tile + 1) * tile_panels, packed_panels(weights_.gate.rows));
  args.activation = block.activation;
  args.out = block.out;
  args.out_row = block.out_row + row_begin;
  args.accumulators = static_cast<float*>(context_.scratch(thread, kAccumulators, 0));
  args.scratch = context_.scratch(thread, kCandidates, 0);
  return kernel_->run(args);
}

}  // namespace twell
