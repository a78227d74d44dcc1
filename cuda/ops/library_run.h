// A call around a library's GEMMs.
#pragma once

#include "cuda/ops/library_gemm.h"
#include "cuda/ops/run.h"

namespace twell::cuda {

class LibraryRun {
 public:
  LibraryRun(const FfnCall& call, const FfnBuffers& buffers)
      : call_(call), plan_(call.plan), problem_(call.plan.problem), b_(buffers) {}

  // Rows [first, first + rows) of the call; parts come in order.
  void run(std::int64_t first, std::int64_t rows) const;

 private:
  bool all_hot() const { return plan_.hot == problem_.neurons; }
  bool trains() const { return call_.keeping != nullptr; }
  const KeptBuffers& kept() const { return call_.keeping->buffers; }
  // Whether the product activates the dense gate where it stands.
  bool unpacked() const { return b_.hot == nullptr && !trains(); }
  // Of the hot neurons: g, or h where there is no u of its own; u; h.
  std::uint16_t* hot_g(std::int64_t first) const {
    return trains() ? kept().hot_g + first * b_.hot_stride : b_.hot;
  }
  std::uint16_t* hot_u(std::int64_t first) const {
    return trains() ? kept().hot_u + first * b_.hot_stride : b_.up;
  }
  std::uint16_t* hot_h(std::int64_t first) const { return b_.up != nullptr ? b_.up : hot_g(first); }

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
  void gate(std::int64_t first, std::int64_t block, std::int64_t rows) const;

  void multiply_hot(std::int64_t first, std::int64_t rows) const;

  // Σ |h| of the hot neurons, to which the gather adds that of the others.
  void start_l1(std::int64_t first, std::int64_t rows) const;

  void gather(std::int64_t first) const;

  const FfnCall& call_;
  const FfnPlan& plan_;
  const Problem& problem_;
  const FfnBuffers& b_;
};

}  // namespace twell::cuda
