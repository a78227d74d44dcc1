// The flags of a training run, shared by twell train and twell demo.
#pragma once

#include <string>

#include "cli/command.h"
#include "train/run.h"

namespace twell::cli {

// Length, batch, optimizer, sparsity, execution and logging flags onto `recipe`, whose values are
// the defaults shown.
void add_recipe_options(CLI::App& command, lm::Recipe& recipe, std::string& compute);
// Shape of a model made from nothing.
void add_shape_options(CLI::App& command, io::ModelConfig& config);

// One line of progress: "loss 4.313, non-zeros 61.2 (3.0 %), 5100 tokens/s".
std::string describe(const lm::LogRecord& record, std::int64_t hidden_units);

}  // namespace twell::cli
