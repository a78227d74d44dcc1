// The layer around a library's GEMMs. The gate is multiplied in blocks of rows whose dense output
// stays in L2, where it is packed. Where the hot neurons' rows of up follow those of the gate, one
// GEMM gives their u as well, and packing makes h; else up and the product come after it. Then down
// of the hot neurons as a GEMM, over so many rows that its f32 sums stay in L2, and the gather of
// the other neurons, which adds to them.
//
// Where all neurons are hot this is the dense layer: the same GEMMs and a product. In training, g
// and u stay where the backward pass finds them.
#include <algorithm>

#include "cuda/kernels/common/check.h"
#include "cuda/ops/library_run.h"

namespace twell::cuda {

void LibraryRun::run(std::int64_t first, std::int64_t rows) const {
  for (std::int64_t block = 0; block < rows; block += plan_.gemm.block_rows) {
    gate(first, block, std::min<std::int64_t>(plan_.gemm.block_rows, rows - block));
  }
  if (trains() && !all_hot()) {
    launch_scan_rows({b_.packed.counts, kept().offsets, static_cast<int>(rows), first},
                     call_.stream);
  }
  if (plan_.hot > 0) multiply_hot(first, rows);
  if (trains() && call_.keeping->l1 != nullptr) start_l1(first, rows);
  if (!all_hot()) gather(first);
}

void LibraryRun::gate(std::int64_t first, std::int64_t block, std::int64_t rows) const {
  multiply({.a = rows_from(call_.x, first + block),
            .b = call_.gate,
            .c = b_.gate,
            .c_stride = b_.gate_stride,
            .wide = plan_.gemm.wide,
            .rows = rows,
            .cols = plan_.gemm.block_cols,
            .depth = problem_.width});
  const bool counted = call_.stats.row_nnz != nullptr || call_.stats.neuron_counts != nullptr;
  if (unpacked() && !counted) return;
  PackGateArgs pack;
  pack.gate = dense_gate();
  pack.rows = static_cast<int>(rows);
  pack.first_row = static_cast<int>(block);
  pack.cols = static_cast<int>(problem_.neurons);
  pack.hot = hot_g(first);
  pack.hot_stride = b_.hot_stride;
  pack.hot_cols = static_cast<int>(plan_.hot);
  pack.up_col = plan_.joined ? pack.cols : 0;
  pack.out = b_.packed;
  if (trains() && !all_hot()) {
    pack.fired = {kept().fired.words + first * kept().fired.stride, kept().fired.stride};
  }
  pack.queue = queue_of(first);
  pack.row_nnz = call_.row_nnz(first);
  pack.neuron_counts = call_.neuron_counts();
  launch_pack_gate(problem_.dtype, pack, call_.stream);
}

void LibraryRun::gather(std::int64_t first) const {
  GatherRowsArgs args;
  args.x = rows_from(call_.x, first);
  if (problem_.gated) args.up = rows_from(call_.up, plan_.hot);
  args.down = rows_from(call_.down, plan_.hot);
  args.y = call_.y + first * call_.y_stride;
  args.y_stride = call_.y_stride;
  args.depth = static_cast<int>(problem_.width);
  args.gate = b_.packed;
  args.queue = queue_of(first);
  args.partial = b_.partial;
  args.sums = b_.sums;
  args.sums_stride = b_.sums_stride;
  if (trains()) {
    const Keeping& keeping = *call_.keeping;
    float* l1 = keeping.l1 == nullptr ? nullptr : keeping.l1 + first;
    args.kept = {kept().offsets + first, kept().values, keeping.places, l1, keeping.chunk_l1};
  }
  launch_gather_rows(plan_.gather, args, call_.stream);
}

void run_library(const FfnCall& call, const FfnBuffers& buffers) {
  const FfnPlan& plan = call.plan;
  const LibraryRun run(call, buffers);
  if (buffers.zeroed_count > 0) {
    TWELL_CUDA_CHECK(cudaMemsetAsync(
        buffers.zeroed, 0, static_cast<std::size_t>(buffers.zeroed_count) * 4, call.stream));
  }
  for (std::int64_t first = 0; first < plan.problem.tokens; first += plan.row_block) {
    run.run(first, std::min(plan.row_block, plan.problem.tokens - first));
  }
}

}  // namespace twell::cuda
