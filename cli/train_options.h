// The flags of a training run, shared by twell train and twell demo.
#pragma once

#include <functional>
#include <string>

#include "cli/command.h"
#include "train/run.h"

namespace twell::cli {

// What one step does, as below.
void add_step_options(CLI::App& command, lm::Recipe& recipe, std::string& compute);
// Length, batch, optimizer, sparsity, execution and logging flags onto `recipe`, whose values are
// the defaults shown.
void add_recipe_options(CLI::App& command, lm::Recipe& recipe, std::string& compute);
// Shape of a model made from nothing.
void add_shape_options(CLI::App& command, io::ModelConfig& config);

// Trains, with a bar for each stage. `keep_on` sees every record; false: stop, with a checkpoint.
lm::TrainResult train_with_progress(lm::TrainRun& run,
                                    const std::function<bool(const lm::LogRecord&)>& keep_on);
nlohmann::json to_json(const lm::TrainResult& result);  // what every training reports

}  // namespace twell::cli
