// The layer around a library's GEMMs. The gate is multiplied in blocks of rows whose dense output
// stays in L2, where it is packed. Where the hot neurons' rows of up follow those of the gate, one
// GEMM gives their u as well, and packing makes h; else up and the product come after it. Then down
// of the hot neurons as a GEMM, over so many rows that its f32 sums stay in L2, and the gather of
// the other neurons, which adds to them.
//
// Where all neurons are hot this is the dense layer: the same GEMMs and a product.
#include <algorithm>

#include "cuda_ops/library_gemm.h"
#include "cuda_ops/run.h"
#include "kernels/cuda/common/check.h"

namespace twell::cuda {
namespace {

class LibraryRun {
 public:
  LibraryRun(const FfnCall& call, const FfnBuffers& buffers)
      : call_(call), plan_(call.plan), problem_(call.plan.problem), b_(buffers) {}

  // Rows [first, first + rows) of the call.
  void run(std::int64_t first, std::int64_t rows) const {
    for (std::int64_t block = 0; block < rows; block += plan_.gemm.block_rows) {
      gate(first, block, std::min<std::int64_t>(plan_.gemm.block_rows, rows - block));
    }
    if (plan_.hot > 0) multiply_hot(first, rows);
    if (plan_.hot < problem_.hidden) gather(first);
  }

 private:
  bool all_hot() const { return plan_.hot == problem_.hidden; }
  // Whether the product activates the dense gate where it stands.
  bool unpacked() const { return b_.hot == nullptr; }

  // Each part of the rows has counters of its own.
  RowQueue queue_of(std::int64_t first) const {
    RowQueue queue = b_.queue;
    const std::int64_t part = first / plan_.row_block * b_.part_counters;
    queue.counters += part;
    queue.finished += part;
    return queue;
  }

  GateSource dense_gate() const {
    GateSource gate;
    gate.data = b_.gate;
    gate.stride = b_.gate_stride;
    gate.wide = plan_.gemm.wide;
    gate.activation = call_.activation;
    return gate;
  }

  void multiply(LibraryGemm gemm) const {
    library_gemm("cuda::ffn", problem_.dtype, gemm, b_.library, call_.stream);
  }

  // Rows [block, block + rows) of those from `first` on.
  void gate(std::int64_t first, std::int64_t block, std::int64_t rows) const {
    multiply({rows_from(call_.x, first + block), call_.gate, false, b_.gate, b_.gate_stride,
              plan_.gemm.wide, rows, plan_.gemm.block_cols, problem_.depth});
    const bool counted = call_.stats.row_nnz != nullptr || call_.stats.neuron_counts != nullptr;
    if (unpacked() && !counted) return;
    PackGateArgs pack;
    pack.gate = dense_gate();
    pack.rows = static_cast<int>(rows);
    pack.first_row = static_cast<int>(block);
    pack.cols = static_cast<int>(problem_.hidden);
    pack.hot = b_.hot;
    pack.hot_stride = b_.hot_stride;
    pack.hot_cols = static_cast<int>(plan_.hot);
    pack.up_col = plan_.joined ? pack.cols : 0;
    pack.out = b_.packed;
    pack.queue = queue_of(first);
    pack.row_nnz = call_.row_nnz(first);
    pack.neuron_counts = call_.neuron_counts();
    launch_pack_gate(problem_.dtype, pack, call_.stream);
  }

  void multiply_hot(std::int64_t first, std::int64_t rows) const {
    if (b_.up != nullptr) {
      multiply({rows_from(call_.x, first), call_.up, false, b_.up, b_.hot_stride, false, rows,
                plan_.hot, problem_.depth});
      HotProductArgs product;
      product.gate = dense_gate();
      if (!unpacked()) {
        product.gate.data = b_.hot;
        product.gate.stride = b_.hot_stride;
        product.gate.wide = product.gate.activates = false;
      }
      product.up_out = b_.up;
      product.stride = b_.hot_stride;
      product.rows = static_cast<int>(rows);
      product.cols = static_cast<int>(plan_.hot);
      launch_hot_product(problem_.dtype, product, call_.stream);
    }
    LibraryGemm down{{b_.up != nullptr ? b_.up : b_.hot, b_.hot_stride},
                     call_.down,
                     true,
                     b_.sums,
                     b_.sums_stride,
                     true,
                     rows,
                     problem_.depth,
                     plan_.hot};
    if (all_hot()) {
      down.c = call_.y + first * call_.y_stride;
      down.c_stride = call_.y_stride;
      down.wide = false;
    }
    multiply(down);
  }

  void gather(std::int64_t first) const {
    GatherRowsArgs args;
    args.x = rows_from(call_.x, first);
    if (problem_.gated) args.up = rows_from(call_.up, plan_.hot);
    args.down = rows_from(call_.down, plan_.hot);
    args.y = call_.y + first * call_.y_stride;
    args.y_stride = call_.y_stride;
    args.depth = static_cast<int>(problem_.depth);
    args.gate = b_.packed;
    args.queue = queue_of(first);
    args.partial = b_.partial;
    args.sums = b_.sums;
    args.sums_stride = b_.sums_stride;
    launch_gather_rows(plan_.gather, args, call_.stream);
  }

  const FfnCall& call_;
  const FfnPlan& plan_;
  const Problem& problem_;
  const FfnBuffers& b_;
};

}  // namespace

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
