#include "ops/gate.h"

#include <algorithm>

namespace twell {
namespace {

template <class From, class To>
void convert_rows(ConstMatrixView x, std::int64_t begin, std::int64_t end, std::int64_t depth,
                  To* prepared) {
  for (std::int64_t r = begin; r < end; ++r) {
    const From* from = x.row<From>(r);
    To* to = prepared + r * depth;
    for (std::int64_t k = 0; k < x.cols; ++k) to[k] = static_cast<To>(from[k]);
    std::fill(to + x.cols, to + depth, To{});
  }
}

std::int64_t depth_of(const GateBlock& block) {
  return packed_depth(block.weight.dtype, block.weight.cols);
}

}  // namespace

std::size_t prepared_x_bytes(const GateBlock& block) {
  if (block.x.dtype == block.kernel.x_dtype && depth_of(block) == block.x.cols) return 0;
  return static_cast<std::size_t>(block.x.rows * depth_of(block)) * size_of(block.kernel.x_dtype);
}

void prepare_x(const GateBlock& block, std::int64_t begin, std::int64_t end, void* prepared) {
  if (prepared_x_bytes(block) == 0) return;
  const std::int64_t depth = depth_of(block);
  if (block.x.dtype == DType::f32) {
    convert_rows<float>(block.x, begin, end, depth, static_cast<float*>(prepared));
  } else if (block.kernel.x_dtype == DType::f32) {
    convert_rows<bf16>(block.x, begin, end, depth, static_cast<float*>(prepared));
  } else {
    convert_rows<bf16>(block.x, begin, end, depth, static_cast<bf16*>(prepared));
  }
}

GemmArgs x_of(const GateBlock& block, const void* prepared) {
  const bool in_place = prepared_x_bytes(block) == 0;
  GemmArgs args;
  args.x = in_place ? block.x.data : prepared;
  args.x_stride = in_place ? block.x.row_stride : depth_of(block);
  args.rows = block.x.rows;
  return args;
}

void run_gate(const GateBlock& block, const void* prepared, std::int64_t row_begin,
              std::int64_t row_end, std::int64_t tile_begin, std::int64_t tile_end,
              float* accumulators) {
  const GemmArgs x = x_of(block, prepared);
  const std::int64_t tile_panels = block.out.tile / kPanel;
  GemmReluTwellArgs args;
  args.x = static_cast<const std::byte*>(x.x) +
           static_cast<std::size_t>(row_begin * x.x_stride) * size_of(block.kernel.x_dtype);
  args.x_stride = x.x_stride;
  args.rows = row_end - row_begin;
  args.weight = block.weight;
  args.panel_begin = tile_begin * tile_panels;
  args.panel_end = std::min(tile_end * tile_panels, packed_panels(block.weight.rows));
  args.activation = block.activation;
  args.out = block.out;
  args.out_row = block.out_row + row_begin;
  args.accumulators = accumulators;
  block.kernel.run(args);
}

}  // namespace twell
