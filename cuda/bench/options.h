// What the benchmark is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace twell::bench {

// Parts that decide what to build next, run where they are named.
inline constexpr const char* kProbes[] = {"probe-gate", "probe-rows", "probe-graph"};

struct Options {
  std::string json;
  std::vector<std::int64_t> tokens = {1, 4, 16, 64, 256, 1024, 4096, 16384};
  std::vector<double> nnz = {29, 113, 563};
  std::int64_t width = 2048;
  std::int64_t neurons = 5632;
  // Of training.
  std::vector<std::int64_t> train_tokens = {2048, 16384};
  std::vector<double> train_nnz = {28, 56, 113, 282};  // 0.5, 1, 2 and 5 % of 5632
  int sm_rows = 2048;                                  // of 4 KB, that an SM reads in a probe
  int runs = 15;
  bool list = false;     // names the variants and measures nothing
  bool predict = false;  // says what is expected on an H100 and measures nothing
  std::vector<std::string> parts = {"exact", "layers", "train", "sweeps"};

  bool has(const char* part) const;
  // Ceilings come first, but not where probes are all that is asked for.
  bool has_ceilings() const;
};

// Gives `app` the options; parsing fills `options`, which outlives it.
void declare(CLI::App& app, Options& options);

}  // namespace twell::bench
