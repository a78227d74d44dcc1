// Up and down of a block of rows from its packed gate (or hidden state), by gathering: each row
// walks its own active neurons.
//
// Rows are shared out among the threads; where they are many, a tier may take the columns of some
// of them piece by piece (TierTuning::gather_columns). Where they are few, each row's active
// neurons are split into `parts` instead, whose partial sums are added in a fixed order, so that
// the result depends on the plan alone.
#pragma once

#include "core/team.h"
#include "ops/weight.h"

namespace twell {

struct SparseRows {
  const Kernels& kernels;
  const FfnForm& form;
  TwellView packed;       // row 0 is the block's first
  const UpDown& weights;  // without up, packed holds the hidden state itself
  int parts = 1;
  std::int64_t columns = 0;  // of a piece; 0: whole rows
  ConstMatrixView x = {};    // [rows, D]; read if up is there
  MatrixView y = {};         // [rows, D]
  // What hot neurons make of a row beside this. sums: f32 [rows, D] that y starts from instead of
  // 0, overwritten; squares: [rows] their Σ h², with a norm. Both or neither, where parts is 1.
  float* sums = nullptr;
  const double* squares = nullptr;

  std::int64_t rows() const { return y.rows; }
};

// For blocks of up to `rows` rows.
void take_scratch(Context& context, const SparseRows& work, std::int64_t rows, int threads);
// Called by every thread of a parallel region; ends with a barrier.
void run_sparse_rows(Team& team, Context& context, const SparseRows& work);

}  // namespace twell
