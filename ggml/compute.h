// The operations of the backend: MUL_MAT and MUL_MAT_ID with a weight that was taken, and, behind
// an up of ours, the bias and the two parts of a squared ReLU, so that the scheduler cuts a graph
// once before a layer and once behind it.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ggml/host.h"
#include "ggml/weight.h"
#include "twell/context.h"

namespace twell::ggml {

// Whether to compute it. While a model loads, also whether to take its first source.
bool supports(const ggml_tensor& op);

// The state of one backend: its threads, and what belongs to them.
class Compute {
 public:
  void set_threads(int threads) { threads_ = threads; }
  // The nodes of a graph, in order.
  ggml_status run(ggml_cgraph* graph);

 private:
  void activate(ggml_tensor& node) const;
  void multiply(ggml_tensor& node);
  void multiply_rows(const std::vector<GgmlMatrix>& packed, ggml_tensor& node);
  void multiply_by_experts(const std::vector<GgmlMatrix>& packed, ggml_tensor& node);
  // For a product of so many rows.
  int threads_for(std::int64_t rows) const;
  Context& context(std::int64_t rows);

  int threads_ = 0;  // as llama.cpp has said; 0: all
  std::optional<Context> context_;
  HostCpu host_;
  std::vector<float> inputs_, outputs_;  // rows of one expert
};

}  // namespace twell::ggml
