// x in terms for a weight of codes, where integer products with them are best.
#pragma once

#include <algorithm>
#include <atomic>

#include "core/team.h"
#include "ops/weight.h"

namespace twell {

class TermsInput {
 public:
  // Bytes of terms that at most so many rows take; 0 for a weight that has none.
  static std::size_t bytes(const Weight& weight, std::int64_t rows) {
    const WeightKernels& kernels = *weight.kernels;
    const std::int64_t most = kernels.one_term_always ? rows : std::min(rows, kernels.terms_up_to);
    return static_cast<std::size_t>(most * code_blocks(weight.cols)) * sizeof(CodeTerms);
  }

  // x [rows, cols] of the weight comes next, its terms go to memory of bytes(); one thread calls
  // this. Many rows are worth a try where the first one has one term a block: others show it within
  // a few inputs.
  void begin(const Weight& weight, ConstMatrixView x, CodeTerms* terms) {
    weight_ = &weight;
    x_ = x;
    terms_ = terms;
    few_ = x.rows <= weight.kernels->terms_up_to;
    several_ = false;
    tried_ = few_ || (weight.kernels->one_term_always && weight.to_terms(x, 0, terms));
  }
  // Every thread of a parallel region calls this; it ends with a barrier.
  void prepare(Team& team) {
    if (!tried_) return;
    team.for_static(x_.rows, [&](std::int64_t r) {
      if (!weight_->to_terms(x_, r, terms_)) several_.store(true, std::memory_order_relaxed);
    });
  }
  // After that: row r on for a GEMM, or null where it reads x as numbers.
  const CodeTerms* from(std::int64_t r) const {
    const bool taken = tried_ && (few_ || !several_.load(std::memory_order_relaxed));
    return taken ? terms_ + r * code_blocks(x_.cols) : nullptr;
  }
  bool taken() const { return from(0) != nullptr; }

 private:
  const Weight* weight_ = nullptr;
  ConstMatrixView x_;
  CodeTerms* terms_ = nullptr;
  bool few_ = false, tried_ = false;
  std::atomic<bool> several_ = false;  // some block has several terms
};

}  // namespace twell
