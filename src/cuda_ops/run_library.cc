// The layer around a library's GEMMs. The gate is multiplied in blocks of rows whose dense output
// stays in L2, where it is packed. Then, over all rows at once, since their outputs are small: the
// hot neurons' up and down as GEMMs, and the gather of the others, which adds to their sums.
//
// Where all neurons are hot this is the dense layer: three GEMMs and a product. For training, g and
// u stay where the backward pass finds them.
#include <algorithm>

#include "cuda_ops/library_gemm.h"
#include "cuda_ops/run.h"
#include "kernels/cuda/common/check.h"

namespace twell::cuda {
namespace {

class LibraryRun {
 public:
  LibraryRun(const FfnCall& call, const FfnBuffers& buffers)
      : call_(call), plan_(call.plan), problem_(call.plan.problem), b_(buffers) {
    if (trains()) keep_ = *call.keeping;
  }

  // Rows [first, first + rows) of the call.
  void run(std::int64_t first, std::int64_t rows) const {
    if (b_.zeroed_count > 0) {
      TWELL_CUDA_CHECK(cudaMemsetAsync(b_.zeroed, 0, static_cast<std::size_t>(b_.zeroed_count) * 4,
                                       call_.stream));
    }
    for (std::int64_t block = 0; block < rows; block += plan_.gemm.block_rows) {
      gate(first, block, std::min<std::int64_t>(plan_.gemm.block_rows, rows - block));
    }
    if (trains() && !all_hot()) {
      launch_scan_rows({b_.packed.counts, keep_.buffers.offsets, static_cast<int>(rows), first},
                       call_.stream);
    }
    if (plan_.hot > 0) multiply_hot(first, rows);
    if (keep_.l1 != nullptr) start_l1(first, rows);
    if (!all_hot()) gather(first);
  }

 private:
  bool all_hot() const { return plan_.hot == problem_.hidden; }
  bool trains() const { return call_.keeping != nullptr; }
  // g, u and h of the hot neurons, of rows from `first` on.
  std::uint16_t* hot_g(std::int64_t first) const {
    return trains() ? keep_.buffers.hot_g + first * b_.hot_stride : b_.hot;
  }
  std::uint16_t* hot_u(std::int64_t first) const {
    return trains() ? keep_.buffers.hot_u + first * b_.hot_stride : b_.up;
  }
  std::uint16_t* hot_h(std::int64_t first) const { return problem_.gated ? b_.up : hot_g(first); }

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
    multiply({.a = rows_from(call_.x, first + block),
              .b = call_.gate,
              .c = b_.gate,
              .c_stride = b_.gate_stride,
              .wide = plan_.gemm.wide,
              .rows = rows,
              .cols = problem_.hidden,
              .depth = problem_.depth});
    const bool counted = call_.stats.row_nnz != nullptr || call_.stats.neuron_counts != nullptr;
    if (all_hot() && !counted && !trains()) return;  // the product activates what it reads
    PackGateArgs pack;
    pack.gate = dense_gate();
    pack.rows = static_cast<int>(rows);
    pack.first_row = static_cast<int>(block);
    pack.cols = static_cast<int>(problem_.hidden);
    pack.hot = all_hot() && !trains() ? nullptr : hot_g(first);
    pack.hot_stride = b_.hot_stride;
    pack.hot_cols = static_cast<int>(plan_.hot);
    pack.out = b_.packed;
    if (trains() && !all_hot()) {
      pack.fired = keep_.buffers.fired;
      pack.fired.words += first * pack.fired.stride;
    }
    pack.queue = b_.queue;
    pack.row_nnz = call_.row_nnz(first);
    pack.neuron_counts = call_.neuron_counts();
    launch_pack_gate(problem_.dtype, pack, call_.stream);
  }

  void multiply_hot(std::int64_t first, std::int64_t rows) const {
    const bool activates = all_hot() && !trains();
    HotProductArgs product;
    if (activates) {
      product.gate = dense_gate();
    } else {
      product.gate.data = hot_g(first);
      product.gate.stride = b_.hot_stride;
      product.gate.activates = false;
    }
    product.rows = static_cast<int>(rows);
    product.cols = static_cast<int>(plan_.hot);
    product.up = problem_.gated ? hot_u(first) : nullptr;
    product.out = hot_h(first);
    product.up_stride = product.out_stride = b_.hot_stride;
    if (problem_.gated) {
      multiply({.a = rows_from(call_.x, first),
                .b = call_.up,
                .c = hot_u(first),
                .c_stride = b_.hot_stride,
                .rows = rows,
                .cols = plan_.hot,
                .depth = problem_.depth});
    }
    if (problem_.gated || activates) {
      launch_hot_product(problem_.dtype, product, call_.stream);
    }
    LibraryGemm down = {.a = {product.out, b_.hot_stride},
                        .b = call_.down,
                        .b_by_depth = true,
                        .c = b_.sums,
                        .c_stride = b_.sums_stride,
                        .wide = true,
                        .rows = rows,
                        .cols = problem_.depth,
                        .depth = plan_.hot};
    if (all_hot()) {
      down.c = call_.y + first * call_.y_stride;
      down.c_stride = call_.y_stride;
      down.wide = false;
    }
    multiply(down);
  }

  // Σ |h| of the hot neurons, to which the gather adds that of the others.
  void start_l1(std::int64_t first, std::int64_t rows) const {
    launch_absolute_sums(problem_.dtype,
                         {hot_h(first), b_.hot_stride, keep_.l1 + first, static_cast<int>(rows),
                          static_cast<int>(plan_.hot)},
                         call_.stream);
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
    if (trains()) {
      args.kept.offsets = keep_.buffers.offsets + first;
      args.kept.values = keep_.buffers.values;
      args.kept.places = keep_.places;
      args.kept.l1 = keep_.l1 == nullptr ? nullptr : keep_.l1 + first;
      args.kept.chunk_l1 = keep_.chunk_l1;
    }
    launch_gather_rows(plan_.gather, args, call_.stream);
  }

  const FfnCall& call_;
  const FfnPlan& plan_;
  const Problem& problem_;
  const FfnBuffers& b_;
  Keeping keep_;
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
