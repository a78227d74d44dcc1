// The operations on a gate or hidden state that is packed already.
#include <omp.h>

#include "ops/gate.h"
#include "ops/sparse_rows.h"
#include "ops/validate.h"

namespace twell {
namespace {

void run(Context& context, SparseRows work) {
  if (work.rows == 0) return;
  work.tier = context.tier();
  work.parts = sparse_parts(work.rows, context.threads());
  const std::size_t list = active_bytes(work.packed.tiles * work.packed.tile);
  for (int t = 0; t < context.threads(); ++t) {
    context.scratch(t, kActive, list);
    context.scratch(t, kPartialY, partial_bytes(work));
  }
#pragma omp parallel num_threads(context.threads())
  {
    const int thread = omp_get_thread_num();
    void* partial = context.scratch(work.parts > 1 ? 0 : thread, kPartialY, partial_bytes(work));
    run_sparse_rows(work, context.scratch(thread, kActive, list), static_cast<float*>(partial));
  }
}

}  // namespace

void twell_gated_ffn(Context& context, ConstMatrixView x, const TwellMatrix& gate,
                     ConstMatrixView up, ConstMatrixView down, MatrixView y) {
  constexpr const char* kOperation = "twell_gated_ffn";
  const TwellLayout& layout = gate.layout();
  require_matrix(kOperation, "x", x, layout.dtype, layout.rows, x.cols);
  require_matrix(kOperation, "up", up, layout.dtype, layout.cols, x.cols);
  require_matrix(kOperation, "down", down, layout.dtype, layout.cols, down.cols);
  require_matrix(kOperation, "y", y, layout.dtype, layout.rows, down.cols);
  SparseRows work;
  work.packed = gate.view();
  work.rows = layout.rows;
  work.x = x;
  work.up = up;
  work.down = down;
  work.y = y;
  run(context, work);
}

void twell_spmm(Context& context, const TwellMatrix& hidden, ConstMatrixView down, MatrixView y) {
  constexpr const char* kOperation = "twell_spmm";
  const TwellLayout& layout = hidden.layout();
  require_matrix(kOperation, "down", down, layout.dtype, layout.cols, down.cols);
  require_matrix(kOperation, "y", y, layout.dtype, layout.rows, down.cols);
  SparseRows work;
  work.packed = hidden.view();
  work.rows = layout.rows;
  work.down = down;
  work.y = y;
  run(context, work);
}

}  // namespace twell
