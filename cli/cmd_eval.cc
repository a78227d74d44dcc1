// twell eval: perplexity of a text, accuracy on multiple-choice tasks.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "cli/command.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/tasks.h"
#include "engine/score.h"

namespace twell::cli {
namespace {

struct EvalCommand : ModelOptions {
  std::string task;
  std::string data;
  std::int64_t limit = 0;
  std::int64_t window = 0;
};

void run_perplexity(EvalCommand& o, lm::Model& model, const io::Tokenizer& tokenizer) {
  const auto tokens = read_tokens(o.data, tokenizer, o.limit);
  Progress progress("scoring", static_cast<std::int64_t>(tokens.size()));
  lm::PerplexityOptions options;
  options.window = o.window;
  options.on_progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
  const lm::Perplexity result =
      named(o.model, [&] { return lm::perplexity(model, tokens, options); });
  progress.finish();
  const double mean = result.negative_log_likelihood / static_cast<double>(result.tokens);
  o.say("{}: perplexity {:.3f} ({:.4f} nats a token, {})\n", o.data, result.perplexity(), mean,
        counted(result.tokens, "token"));
  o.write({{"task", o.task},
           {"items", result.tokens},
           {"perplexity", result.perplexity()},
           {"nats_per_token", mean}});
}

// As lm-eval has it. Context and continuation are tokenized together, as one text: a continuation
// alone could begin with another token. Spaces at the end of the context belong to the
// continuation, as tokens begin with spaces and do not end with them.
lm::ScoreRequest make_request(const TaskChoice& choice, const io::Tokenizer& tokenizer) {
  const std::size_t last = choice.context.find_last_not_of(" \t\n\r\f\v");
  const std::size_t length = last == std::string::npos ? 0 : last + 1;
  const auto context = tokenizer.encode(std::string_view(choice.context).substr(0, length));
  const auto whole = tokenizer.encode(choice.context + choice.continuation);
  lm::ScoreRequest request;
  auto split = static_cast<std::ptrdiff_t>(std::min(context.size(), whole.size()));
  if (split == static_cast<std::ptrdiff_t>(whole.size()) && split > 0) --split;
  request.context.assign(whole.begin(), whole.begin() + split);
  request.continuation.assign(whole.begin() + split, whole.end());
  if (request.context.empty()) {
    const auto bos = tokenizer.bos_id();
    request.context.push_back((bos ? bos : tokenizer.eos_id()).value_or(0));
  }
  return request;
}

// Of a continuation without the space before it: lm-eval's acc_norm divides by it.
double characters(const std::string& continuation) {
  const auto count = std::count_if(continuation.begin(), continuation.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;  // no further byte of a character
  });
  return static_cast<double>(std::max<std::ptrdiff_t>(1, count - 1));
}

std::size_t best_of(const std::vector<double>& scores) {
  return static_cast<std::size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

void run_choices(EvalCommand& o, lm::Model& model, const io::Tokenizer& tokenizer) {
  std::vector<TaskItem> items = read_task(o.task, o.data);
  if (o.limit > 0 && static_cast<std::int64_t>(items.size()) > o.limit) {
    items.resize(static_cast<std::size_t>(o.limit));
  }
  std::vector<lm::ScoreRequest> requests;
  for (const TaskItem& item : items) {
    for (const TaskChoice& choice : item.choices) {
      requests.push_back(make_request(choice, tokenizer));
    }
  }
  Progress progress("scoring", static_cast<std::int64_t>(requests.size()));
  lm::ScoreOptions options;
  options.on_progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
  const auto scores =
      named(o.model, [&] { return lm::score_continuations(model, requests, options); });
  progress.finish();

  std::size_t at = 0, right = 0, right_by_length = 0;
  for (const TaskItem& item : items) {
    std::vector<double> plain, by_length;
    for (const TaskChoice& choice : item.choices) {
      plain.push_back(scores[at].log_likelihood);
      by_length.push_back(scores[at].log_likelihood / characters(choice.continuation));
      ++at;
    }
    if (item.choices.size() == 1) {  // the model's own word?
      right += scores[at - 1].greedy ? 1 : 0;
      right_by_length += scores[at - 1].greedy ? 1 : 0;
      continue;
    }
    right += best_of(plain) == item.gold ? 1 : 0;
    right_by_length += best_of(by_length) == item.gold ? 1 : 0;
  }
  const double count = static_cast<double>(items.size());
  const double accuracy = static_cast<double>(right) / count;
  const double accuracy_norm = static_cast<double>(right_by_length) / count;
  o.say("{}: {} items, accuracy {:.2f} %, normalised by length {:.2f} %, standard error {:.2f} %\n",
        o.task, items.size(), 100 * accuracy, 100 * accuracy_norm,
        100 * std::sqrt(accuracy * (1 - accuracy) / count));
  o.write({{"task", o.task},
           {"items", items.size()},
           {"accuracy", accuracy},
           {"accuracy_norm", accuracy_norm}});
}

void run(EvalCommand& o) {
  const io::Tokenizer tokenizer = o.tokenizer();
  const auto model = o.open();
  if (o.task == "perplexity") {
    run_perplexity(o, *model, tokenizer);
  } else {
    run_choices(o, *model, tokenizer);
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  auto [c, o] = add_command<EvalCommand>(
      app, "eval", "Perplexity of a text, or accuracy on a multiple-choice task",
      "twell eval --model run --task arc --data arc_easy_test.jsonl", run);
  std::vector<std::string> tasks = task_names();
  tasks.insert(tasks.begin(), "perplexity");
  add_model_option(c, *o);
  c.add_option("--task", o->task,
               "perplexity, arc, hellaswag, openbookqa, piqa, winogrande, commonsenseqa or lambada")
      ->required()
      ->check(CLI::IsMember(tasks))
      ->type_name("NAME");
  c.add_option("--data", o->data, "Data file of the task, or a text")
      ->required()
      ->type_name("FILE");
  c.add_option("--limit", o->limit, "Items to use, or tokens of a text; 0: all")
      ->check(kZeroOrMore);
  c.add_option("--window", o->window,
               "Tokens of a sequence, for perplexity; 0: the model's context, at most 2048")
      ->check(kZeroOrMore);
  add_path_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
}

}  // namespace twell::cli
