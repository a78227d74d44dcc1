#include "cuda/ops/buffers.h"

#include <algorithm>

#include "core/check.h"
#include "cuda/ops/library_gemm.h"
#include "cuda/ops/planning.h"

namespace twell::cuda {
namespace {

// Parts start at a cache line's border, and more.
constexpr std::size_t kAlignment = 256;

}  // namespace

Carver::Carver(const char* operation, const char* argument, const Workspace& memory,
               std::size_t needed, bool trusted)
    : data_(static_cast<std::byte*>(memory.data)) {
  require(memory.bytes >= needed, operation, argument, "expected ", needed,
          " bytes as the plan says, got ", memory.bytes);
  if (needed == 0) return;
  if (!trusted) check_device_pointer(operation, argument, memory.data);
  require(reinterpret_cast<std::uintptr_t>(memory.data) % kAlignment == 0, operation, argument,
          "expected an address that is a multiple of ", kAlignment, " bytes");
}

void* Carver::take_bytes(std::size_t bytes) {
  std::byte* here = data_ == nullptr ? nullptr : data_ + used_;
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return here;
}

SplitBuffers carve_splits(Carver& carver, const GatherPlan& plan, std::int64_t rows) {
  SplitBuffers buffers;
  buffers.ticket_count = rows * plan.passes;
  buffers.tickets = carver.take<std::uint32_t>(buffers.ticket_count);
  buffers.partial = carver.take<float>(buffers.ticket_count * plan.splits * plan.block_floats);
  return buffers;
}

FfnBuffers carve_ffn(Carver& carver, const FfnPlan& plan, bool trains) {
  const Problem& problem = plan.problem;
  const std::int64_t rows = plan.row_block;
  const std::int64_t packed_cols = problem.neurons - plan.hot;
  FfnBuffers b;
  b.packed.tile = b.packed.capacity = plan.gemm.tile;
  b.packed.tiles = packed_cols == 0 ? 0 : static_cast<int>(ceil_div(packed_cols, plan.gemm.tile));
  b.packed.counts = carver.take<std::int32_t>(rows * b.packed.tiles);
  b.packed.slots = carver.take<std::uint32_t>(rows * b.packed.tiles * b.packed.tile);
  if (plan.gather.splits > 1) b.splits = carve_splits(carver, plan.gather, rows);
  if (plan.gemm.shape != GemmShape::library) return b;

  b.library = carver.take<std::byte>(kLibraryWorkspace);
  b.gate_stride = round_up(plan.gemm.block_cols, kVector);
  b.gate = carver.take<std::byte>(plan.gemm.block_rows * b.gate_stride * (plan.gemm.wide ? 4 : 2));
  b.hot_stride = round_up(plan.hot, kVector);
  if (!trains && !waits_for_up(problem, plan.hot, plan.joined))
    b.hot = carver.take<std::uint16_t>(rows * b.hot_stride);
  if (plan.hot > 0 && problem.gated && !plan.joined) {
    b.up = carver.take<std::uint16_t>(rows * b.hot_stride);
  }
  if (packed_cols == 0) return b;

  if (plan.hot > 0) {
    b.sums_stride = round_up(problem.width, kVector);
    b.sums = carver.take<float>(rows * b.sums_stride);
  }
  const GatherPlan& gather = plan.gather;
  b.queue.partials = gather.partials;
  b.queue.capacity = static_cast<int>(rows) + gather.partials;
  b.queue.chunk = gather.chunk;
  b.queue.items = carver.take<RowItem>(b.queue.capacity);
  b.queue.first_partial = carver.take<std::int32_t>(rows);
  b.part_counters = kItemsTaken + gather.passes + rows * gather.passes;
  b.zeroed_count = ceil_div(problem.tokens, std::max<std::int64_t>(rows, 1)) * b.part_counters;
  b.zeroed = carver.take<std::uint32_t>(b.zeroed_count);
  b.queue.counters = b.zeroed;
  b.queue.finished = b.zeroed + kItemsTaken + gather.passes;
  // One of its own for each block besides.
  b.partial = carver.take<float>((std::int64_t{gather.partials} + gather.blocks) * gather.passes *
                                 gather.block_floats);
  return b;
}

}  // namespace twell::cuda
