// The layer in two kernels for each block of rows: the gate's GEMM, which packs, and the gather.
#include <algorithm>

#include "cuda/ops/run.h"

namespace twell::cuda {

void run_fused(const FfnCall& call, const FfnBuffers& buffers) {
  const FfnPlan& plan = call.plan;
  const Problem& problem = plan.problem;
  GemmReluTwellArgs gemm;
  gemm.weight = call.gate;
  gemm.depth = static_cast<int>(problem.width);
  gemm.cols = static_cast<int>(problem.neurons);
  gemm.activation = call.activation;
  gemm.raster_group = plan.gemm.raster_group;
  gemm.out = buffers.packed;
  // The gather's tickets: cleared by the kernel before it, since a memset in between would keep the
  // two from overlapping.
  gemm.cleared = buffers.splits.tickets;
  gemm.cleared_words = static_cast<int>(buffers.splits.ticket_count);

  gemm.screen = call.screen;
  gemm.candidates = reinterpret_cast<unsigned long long*>(call.stats.candidates);

  TwellGatherArgs gather;
  gather.up = call.up;
  gather.down = call.down;
  gather.y_stride = call.y_stride;
  gather.depth = gemm.depth;
  gather.gate = buffers.packed;
  gather.splits = plan.gather.splits;
  gather.tickets = buffers.splits.tickets;
  gather.partial = buffers.splits.partial;
  gather.neuron_counts = call.neuron_counts();

  for (std::int64_t first = 0; first < problem.tokens; first += plan.row_block) {
    gemm.x = gather.x = rows_from(call.x, first);
    gemm.rows = gather.rows = static_cast<int>(std::min(plan.row_block, problem.tokens - first));
    gather.y = call.y + first * call.y_stride;
    gather.row_nnz = call.row_nnz(first);
    launch_gate(plan.gemm, gemm, call.stream);
    launch_twell_gather(plan.gather, gather, call.stream);
  }
}

}  // namespace twell::cuda
