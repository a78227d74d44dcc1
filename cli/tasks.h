// Multiple-choice tasks of the common harnesses, as requests to score.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twell::cli {

// The likeliest of the choices should be choice `gold`. All choices of an item are scored; with a
// single one (LAMBADA) the question is whether it is what the model itself would say.
struct TaskChoice {
  std::string context, continuation;
};
struct TaskItem {
  std::vector<TaskChoice> choices;
  std::size_t gold = 0;
};

// perplexity is no item task and not among them.
const std::vector<std::string>& task_names();

// Parses a data file of the task. Prompts are those of the customary harness: "Question:
// …\nAnswer:" for ARC and PIQA, the bare text otherwise. Throws twell::Error naming file and line.
std::vector<TaskItem> read_task(const std::string& task, const std::string& file);

}  // namespace twell::cli
