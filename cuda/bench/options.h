// What the benchmark is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twell::bench {

struct Options {
  std::string json;
  std::vector<std::int64_t> tokens = {1, 4, 16, 64, 256, 1024, 4096, 16384};
  std::vector<double> nnz = {29, 113, 563};
  std::int64_t depth = 2048;
  std::int64_t hidden = 5632;
  // Of training.
  std::vector<std::int64_t> train_tokens = {2048, 16384};
  std::vector<double> train_nnz = {28, 56, 113, 282};  // 0.5, 1, 2 and 5 % of 5632
  int runs = 15;
  bool list = false;     // names the variants and measures nothing
  bool predict = false;  // says what is expected on an H100 and measures nothing
  // What follows the ceilings, which are always measured; all unless named.
  bool exact = true;
  bool layers = true;
  bool train = true;
  bool sweeps = true;
};

inline constexpr const char* kUsage =
    "twell_gpu_bench [--list | --predict] [--json FILE] [--only exact,layers,train,sweeps]\n"
    "                [--tokens 1,16,...] [--nnz 29,...] [--train-tokens 2048,...] [--train-nnz "
    "28,...]\n"
    "                [--runs N] [--hidden D] [--ffn H]\n";

// Throws Error{invalid_argument}. `arguments` are those after the program's name.
Options parse(const std::vector<std::string>& arguments);

}  // namespace twell::bench
