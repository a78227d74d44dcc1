// Up and down of a block of rows from its packed gate (or hidden state): what twell_gated_ffn,
// twell_spmm and ffn have in common.
//
// Rows are shared out among the threads. Where there are fewer rows than four per thread, each
// row's active neurons are split into `parts` instead, whose partial sums are added in a fixed
// order, so that the result depends on the plan alone.
#pragma once

#include "kernels/kernel.h"

namespace twell {

struct SparseRows {
  CpuTier tier = CpuTier::portable;
  TwellView packed;  // row 0 is the block's first
  std::int64_t rows = 0;
  ConstMatrixView x;   // [rows, D]; used if up is there
  ConstMatrixView up;  // data null: packed holds the hidden state itself
  ConstMatrixView down;
  MatrixView y;  // [rows, D]
  int parts = 1;
  float* sums = nullptr;  // [rows, D]: what y starts from instead of 0; overwritten. parts == 1
};

// 1 from four rows per thread on. rows >= 1.
int sparse_parts(std::int64_t rows, int threads);
// Per thread: the list of one row's active neurons and its f32 sum.
std::size_t active_bytes(std::int64_t hidden);
std::size_t partial_bytes(const SparseRows& work);  // of one thread; shared if parts > 1

// Called by every thread of a parallel region; contains barriers where parts > 1.
// `partial`: partial_bytes(work), the same for all threads if parts > 1, else the thread's own.
void run_sparse_rows(const SparseRows& work, void* active, float* partial);

}  // namespace twell
