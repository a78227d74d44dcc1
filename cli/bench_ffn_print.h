// What `twell bench ffn` is asked, and its results for people.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "decoder/feed_forward.h"
#include "synth/synthetic.h"

namespace twell::cli {

struct BenchFfnOptions : CommonOptions {
  std::int64_t width = 0;  // not given
  std::int64_t neurons = 5632;
  std::vector<std::int64_t> tokens = {1, 64, 2048};
  std::vector<double> nnz = {29};
  std::string grid, chart, trace;
  std::optional<std::int64_t> trace_layer;  // else all
  bool gated = true;
  bool biases = false;
  std::string dtype = "bf16";
  std::string activation = "relu";
  float threshold = 0.5F;
  int layers = 1;
  int repeats = 7;
  double seconds = 0.2;
  std::uint64_t seed = 1;
  bool peaks = false;
  bool train = false;

  lm::ActivationChoice choice() const;
  at::ScalarType type() const;
  lm::SyntheticShape shape(double nnz_mean) const;
};

// One line a case; the grid, non-zeros by tokens; which implementations ran.
void print_ffn_results(const BenchFfnOptions& o, const nlohmann::json& results);
void print_train_results(const BenchFfnOptions& o, const nlohmann::json& results);
void print_ffn_grid(const BenchFfnOptions& o, const nlohmann::json& results);
void print_ffn_implementations(const BenchFfnOptions& o, const nlohmann::json& results);
// Time against density, a chart for each number of tokens: a complete SVG file.
std::string ffn_chart(const BenchFfnOptions& o, const nlohmann::json& results);

}  // namespace twell::cli
