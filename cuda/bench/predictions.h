// What the benchmark's variants are expected to take on an H100, by the estimates that the plans
// use: the table of cuda/bench/predictions.md. No GPU is asked.
#pragma once

#include <string>
#include <vector>

#include "cuda/bench/options.h"
#include "twell/cuda.h"

namespace twell::bench {

// An H100 SXM: 132 SMs at 1,980 MHz, 50 MB of L2, 3.35 TB/s of memory.
cuda::Device h100();

struct Prediction {
  std::string variant;  // of variant_names()
  std::string text;     // a number with its unit
};
std::vector<Prediction> predictions(const Options& options);

// As rows of a table in Markdown, with an empty column for what is measured.
std::string table_of(const std::vector<Prediction>& predictions);

}  // namespace twell::bench
