#include "cli/tasks.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/model_files.h"
#include "files/file_error.h"

namespace twell::cli {
namespace {

using nlohmann::json;

// `question` and the same continuation style for every choice.
TaskItem choice_item(const std::string& context, const json& choices, std::size_t gold) {
  TaskItem item;
  for (const json& choice : choices) {
    item.choices.push_back({context, " " + choice.get<std::string>()});
  }
  item.gold = gold;
  return item;
}

TaskItem parse_item(const std::string& task, const json& line) {
  if (task == "arc") {
    return choice_item("Question: " + line.at("question").get<std::string>() + "\nAnswer:",
                       line.at("choices"), line.at("gold"));
  }
  if (task == "openbookqa") {
    return choice_item(line.at("query"), line.at("choices"), line.at("gold"));
  }
  if (task == "piqa") {  // its queries begin with "Question: " and end with a newline
    return choice_item(line.at("query").get<std::string>() + "Answer:", line.at("choices"),
                       line.at("gold"));
  }
  if (task == "commonsenseqa") {
    const json& question = line.at("question");
    json texts = json::array();
    std::size_t gold = 0;
    for (const json& choice : question.at("choices")) {
      if (choice.at("label") == line.at("answerKey")) gold = texts.size();
      texts.push_back(choice.at("text"));
    }
    return choice_item("Question: " + question.at("stem").get<std::string>() + "\nAnswer:", texts,
                       gold);
  }
  if (task == "winogrande") {  // the contexts differ, the continuation is shared
    TaskItem item;
    for (const json& context : line.at("context_options")) {
      item.choices.push_back({context, " " + line.at("continuation").get<std::string>()});
    }
    item.gold = line.at("gold");
    return item;
  }
  TaskItem item;  // lambada
  item.choices.push_back({line.at("context"), " " + line.at("continuation").get<std::string>()});
  return item;
}

[[noreturn]] void fail_line(const std::string& file, std::size_t line, const std::string& why) {
  throw Error(ErrorKind::environment, fmt::format("{}:{}", file, line), why);
}

void check_item(const TaskItem& item, const std::string& file, std::size_t line) {
  if (item.choices.empty()) fail_line(file, line, "has no choices");
  if (item.gold >= item.choices.size()) {
    fail_line(file, line, fmt::format("names choice {} of {}", item.gold, item.choices.size()));
  }
}

// Items of six lines: context, index of the right ending, four endings.
std::vector<TaskItem> read_hellaswag(const std::string& file, std::istream& in) {
  std::vector<TaskItem> items;
  std::size_t number = 0;
  for (std::string context; std::getline(in, context);) {
    const std::size_t first = ++number;
    std::string gold, ending;
    if (!std::getline(in, gold) || gold.size() != 1 || gold[0] < '0' || gold[0] > '9') {
      fail_line(file, number + 1, "expected the index of the right ending");
    }
    ++number;
    TaskItem item;
    item.gold = static_cast<std::size_t>(gold.front() - '0');
    for (int i = 0; i < 4; ++i) {
      if (!std::getline(in, ending)) fail_line(file, number + 1, "expected four endings");
      ++number;
      item.choices.push_back({context, " " + ending});
    }
    check_item(item, file, first);
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace

const std::vector<std::string>& task_names() {
  static const std::vector<std::string> names = {
      "arc", "hellaswag", "openbookqa", "piqa", "winogrande", "commonsenseqa", "lambada"};
  return names;
}

std::vector<TaskItem> read_task(const std::string& task, const std::string& file) {
  std::istringstream in(read_text(file));
  std::vector<TaskItem> items;
  if (task == "hellaswag") {
    items = read_hellaswag(file, in);
  } else {
    std::size_t number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      if (line.empty()) continue;
      try {
        items.push_back(parse_item(task, json::parse(line)));
      } catch (const json::exception& e) {
        fail_line(file, number,
                  fmt::format("is no item of {}: {}", task, io::library_reason(e.what())));
      }
      check_item(items.back(), file, number);
    }
  }
  if (items.empty()) io::fail_file(file, "holds no items");
  return items;
}

}  // namespace twell::cli
