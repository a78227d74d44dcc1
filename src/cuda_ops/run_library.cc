// The layer around a library's GEMMs. The gate is multiplied in blocks of rows whose dense output
// stays in L2, where it is packed. Then, over all rows at once, since their outputs are small: the
// hot neurons' up and down as GEMMs, and the gather of the others, which adds to their sums.
//
// Where all neurons are hot this is the dense layer: three GEMMs and a product.
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
    if (b_.zeroed_count > 0) {
      TWELL_CUDA_CHECK(cudaMemsetAsync(b_.zeroed, 0, static_cast<std::size_t>(b_.zeroed_count) * 4,
                                       call_.stream));
    }
    for (std::int64_t block = 0; block < rows; block += plan_.gemm.block_rows) {
      gate(first, block, std::min<std::int64_t>(plan_.gemm.block_rows, rows - block));
    }
    if (plan_.hot > 0) multiply_hot(first, rows);
    if (!all_hot()) gather(first);
  }

 private:
  bool all_hot() const { return plan_.hot == problem_.hidden; }

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
              plan_.gemm.wide, rows, problem_.hidden, problem_.depth});
    const bool counted = call_.stats.row_nnz != nullptr || call_.stats.neuron_counts != nullptr;
    if (all_hot() && !counted) return;  // the product activates what it reads
    PackGateArgs pack;
    pack.gate = dense_gate();
    pack.rows = static_cast<int>(rows);
    pack.first_row = static_cast<int>(block);
    pack.cols = static_cast<int>(problem_.hidden);
    pack.hot = all_hot() ? nullptr : b_.hot;
    pack.hot_stride = b_.hot_stride;
    pack.hot_cols = static_cast<int>(plan_.hot);
    pack.out = b_.packed;
    pack.queue = b_.queue;
    pack.row_nnz = call_.row_nnz(first);
    pack.neuron_counts = call_.neuron_counts();
    launch_pack_gate(problem_.dtype, pack, call_.stream);
  }

  void multiply_hot(std::int64_t first, std::int64_t rows) const {
    HotProductArgs product;
    if (all_hot()) {
      product.gate = dense_gate();
    } else {
      product.gate.data = b_.hot;
      product.gate.stride = b_.hot_stride;
      product.gate.activates = false;
    }
    product.rows = static_cast<int>(rows);
    product.cols = static_cast<int>(plan_.hot);
    product.up = b_.up;
    product.out = problem_.gated ? b_.up : b_.hot;
    product.up_stride = product.out_stride = b_.hot_stride;
    if (problem_.gated) {
      multiply({rows_from(call_.x, first), call_.up, false, b_.up, b_.hot_stride, false, rows,
                plan_.hot, problem_.depth});
    }
    if (problem_.gated || all_hot()) {
      launch_hot_product(problem_.dtype, product, call_.stream);
    }
    LibraryGemm down{{product.out, b_.hot_stride},
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
    args.queue = b_.queue;
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
  for (std::int64_t first = 0; first < plan.problem.tokens; first += plan.row_block) {
    run.run(first, std::min(plan.row_block, plan.problem.tokens - first));
  }
}

}  // namespace twell::cuda
