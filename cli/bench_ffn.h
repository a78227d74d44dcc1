// One case of `twell bench ffn`: a layer, a number of tokens, PyTorch's dense path against the
// sparse one in turns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/activity.h"
#include "cli/command.h"
#include "cli/peaks.h"
#include "models/feed_forward.h"
#include "twell/ffn.h"

namespace twell::cli {

struct BenchFfnOptions : CommonOptions {
  std::int64_t input = 2048;
  std::int64_t hidden = 5632;
  std::vector<std::int64_t> tokens = {1, 64, 2048};
  std::vector<double> nnz = {29};
  std::string grid, chart, trace;
  std::int64_t trace_layer = -1;  // all
  bool gated = true;
  std::string dtype = "bf16";
  std::string activation = "relu";
  float threshold = 0.5F;
  int layers = 1;
  int repeats = 7;
  double seconds = 0.2;
  std::uint64_t seed = 1;
  bool peaks = false;

  ActivationSpec spec() const;
  lm::ActivationChoice choice() const;
  at::ScalarType type() const;
  SyntheticShape shape(double nnz_mean) const;
};

// A layer for both sides on one device. On the CPU the sparse one is the engine's.
struct SparseLayer {
  SparseLayer(const SyntheticLayer& made, const lm::ActivationChoice& choice,
              at::Device device = at::kCPU);
  SyntheticLayer source;
  std::shared_ptr<lm::FeedForward> layer;  // on the CPU
  at::Tensor packed;                       // elsewhere: for torch.ops.twell
};

// `stats`: nnz, max_row_nnz and neuron_counts are filled.
at::Tensor run_sparse(const SparseLayer& layer, const ActivationSpec& activation,
                      const at::Tensor& x, FfnStats* stats = nullptr);

struct FfnCase {
  const BenchFfnOptions& options;
  const std::vector<SparseLayer>& layers;
  at::Tensor inputs;  // [slices, M, D]
  std::int64_t tokens;
  double nnz_target;
};

// The keys of one element of `results`. `tick` is called 3 repeats + 1 times.
nlohmann::json run_ffn_case(const FfnCase& c, const std::optional<Peaks>& peaks,
                            const std::function<void()>& tick);

// For people: one line a case; the grid, non-zeros by tokens; which implementations ran.
void print_ffn_results(const BenchFfnOptions& o, const nlohmann::json& results);
void print_ffn_grid(const BenchFfnOptions& o, const nlohmann::json& results);
void print_ffn_implementations(const BenchFfnOptions& o, const nlohmann::json& results);
// Time against density, a chart for each number of tokens: a complete SVG file.
std::string ffn_chart(const BenchFfnOptions& o, const nlohmann::json& results);

}  // namespace twell::cli
