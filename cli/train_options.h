// The flags of a training run, shared by twell train and twell demo.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "train/run.h"

namespace twell::cli {

// Options and the names that their values have in JSON.
using FieldOptions = std::vector<std::pair<CLI::Option*, std::string>>;

// What one step does, as below.
FieldOptions add_step_options(CLI::App& command, lm::Recipe& recipe);
// Length, batch, optimizer, sparsity, execution and logging flags onto `recipe`, whose values are
// the defaults shown.
FieldOptions add_recipe_options(CLI::App& command, lm::Recipe& recipe);
// Shape of a model made from nothing.
FieldOptions add_shape_options(CLI::App& command, io::ModelConfig& config);

// The recipe of a resumed run: `saved`, with what was given and may change; a line about each
// change goes to `changes`. Throws Error naming the option and both values where one may not.
lm::Recipe resumed_recipe(const FieldOptions& options, const lm::Recipe& given,
                          const lm::Recipe& saved, std::vector<std::string>& changes);
// Throws Error naming the option and both values where one that was given is not what the model in
// `directory` has.
void check_shape(const FieldOptions& options, const io::ModelConfig& given,
                 const std::string& directory);

// Trains, with a bar for each stage. `record` sees every line of the log. An interrupt ends it
// after the present step, with a checkpoint.
lm::TrainResult train_with_progress(lm::TrainRun& run,
                                    const std::function<void(const lm::LogRecord&)>& record = {});
nlohmann::json to_json(const lm::TrainResult& result);  // what every training reports

}  // namespace twell::cli
