// The page that twell demo leaves behind: one file, no scripts, nothing loaded from elsewhere.
#pragma once

#include <string>
#include <vector>

#include "measure/model_compare.h"
#include "train/run.h"

namespace twell::cli {

struct DemoReport {
  lm::TrainResult train;
  std::vector<lm::LogRecord> log;
  io::ModelConfig config;
  lm::Comparison speed;
  std::string dtype, tier, processor;
  int threads = 1;
  double nnz_mean = 0;
  double max_rel_err = 0, bound = 0;
  double dense_error = 0, sparse_error = 0;  // against fp32
  std::string text_name;                     // of the training text
  std::string prompt, sample;
  std::string model;  // directory
};
std::string report_html(const DemoReport& report);

}  // namespace twell::cli
