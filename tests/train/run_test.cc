#include "train/run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "files/atomic_file.h"
#include "files/run_directory.h"
#include "tests/support/message_of.h"
#include "tests/support/scratch.h"
#include "tests/support/shared_data.h"
#include "tests/train/tiny_run.h"
#include "tokenizer/tokenizer.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::contains;
using test::message_of;
using test::Scratch;
using test::tiny_run;

constexpr const char* kChildVariable = "TWELL_TRAIN_TEST_DIRECTORY";

// The log without what depends on the clock.
std::vector<json> log_of(const fs::path& run) {
  std::ifstream in(run / "log.jsonl");
  std::vector<json> out;
  std::string line;
  while (std::getline(in, line)) {
    json record = json::parse(line);
    record.erase("seconds");
    record.erase("tokens_per_s");
    out.push_back(std::move(record));
  }
  return out;
}

Recipe as_saved(const fs::path&, const Recipe& saved) { return saved; }

TEST(RunTraining, WritesModelTokenizerAndLog) {
  const Scratch scratch;
  TrainRun run = tiny_run(scratch.path());
  run.recipe.save_every = 0;
  run.recipe.log_every = 5;
  run.recipe.eval_every = 10;
  int calls = 0;
  run.progress = [&](const LogRecord&) { ++calls; };
  const TrainResult result = run_training(run);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(result.steps, 20);
  EXPECT_EQ(result.neurons, 96);
  EXPECT_LT(result.loss_last.value(), result.loss_first.value());
  ASSERT_TRUE(result.validation_loss);
  EXPECT_GT(result.tokens_per_s, 0.0);
  EXPECT_EQ(result.tokens, 20 * 4 * 16);

  const auto log = log_of(run.out);
  ASSERT_EQ(log.size(), 4U);
  EXPECT_EQ(log[3]["step"], 20);
  EXPECT_EQ(log[3]["ce"], result.loss_last.value());
  EXPECT_EQ(log[3]["layers"].size(), 2U);
  EXPECT_EQ(log[3]["layers"][0]["first_nnz"].size(), 8U);
  for (const std::size_t i : {0, 2}) EXPECT_FALSE(log[i].contains("val_loss"));
  for (const std::size_t i : {1, 3}) EXPECT_TRUE(log[i].contains("val_loss"));

  const fs::path model = io::resolve_model_directory(run.out);
  const io::Tokenizer tokenizer = io::Tokenizer::load(model);
  const auto loaded = load_model(model.string());
  EXPECT_EQ(loaded->config().vocab_size, tokenizer.vocab_size());
  EXPECT_EQ(loaded->config().hidden_act, io::HiddenAct::relu);
  EXPECT_EQ(result.parameters, [&] {
    std::int64_t count = 0;
    LoadOptions dense;
    dense.path = FfnPath::dense;
    for (const auto& [name, tensor] : load_model(model.string(), dense)->parameters()) {
      count += tensor.numel();
    }
    return count;
  }());
}

TEST(RunTraining, StopsWhenAskedAndResumesToTheSameLog) {
  const Scratch whole_scratch, scratch;
  const TrainRun whole = tiny_run(whole_scratch.path());
  const TrainResult expected = run_training(whole);

  TrainRun run = tiny_run(scratch.path());
  int steps = 0;
  run.stop = [&] { return ++steps == 7; };
  EXPECT_EQ(run_training(run).steps, 7);
  run.stop = {};
  EXPECT_TRUE(contains(message_of([&] { run_training(run); }), "holds a checkpoint"));
  fs::remove(run.out / "latest");  // as tools do that drop links
  EXPECT_TRUE(contains(message_of([&] { run_training(run); }), "holds a checkpoint"));
  run.resume = as_saved;
  const TrainResult result = run_training(run);
  EXPECT_EQ(result.steps, 20);
  EXPECT_EQ(result.loss_last, expected.loss_last);
  EXPECT_EQ(result.validation_loss, expected.validation_loss);
  EXPECT_EQ(log_of(run.out), log_of(whole.out));

  // Nothing left to do: the result names the checkpoint that is there.
  const TrainResult done = run_training(run);
  EXPECT_EQ(done.steps, 20);
  EXPECT_FALSE(done.loss_first || done.loss_last);
  EXPECT_EQ(log_of(run.out), log_of(whole.out));
  run.resume = [](const fs::path&, Recipe recipe) {
    recipe.peak_lr = 1.0;
    return recipe;
  };
  EXPECT_TRUE(contains(message_of([&] { run_training(run); }), "peak_lr"));
  run.resume = [](const fs::path&, Recipe recipe) {
    recipe.extend(19);
    return recipe;
  };
  EXPECT_TRUE(contains(message_of([&] { run_training(run); }), "has done 20"));
  run.resume = [](const fs::path&, Recipe recipe) {
    recipe.extend(22);
    return recipe;
  };
  EXPECT_EQ(run_training(run).steps, 22);
}

TEST(RunTraining, ContinuesFromAModelWithAnotherActivation) {
  const Scratch scratch;
  TrainRun first = tiny_run(scratch.path());
  first.config.hidden_act = io::HiddenAct::silu;
  first.recipe.save_every = 0;
  const TrainResult dense = run_training(first);
  EXPECT_NEAR(dense.nnz_mean, 96.0, 1.0);  // SiLU yields no zeros

  TrainRun second = first;
  second.out = scratch.path() / "sparse";
  second.recipe.model = dense.checkpoint;
  second.config = {};
  second.activation = io::HiddenAct::relu;
  const TrainResult sparse = run_training(second);
  EXPECT_LT(sparse.nnz_mean, 90.0);
  EXPECT_LT(sparse.loss_first.value(), dense.loss_first.value())
      << "the weights were not taken over";
  EXPECT_EQ(io::load_config(sparse.checkpoint).hidden_act, io::HiddenAct::relu);
}

// Within a group of steps, which is then two lines of the log.
TEST(RunTraining, StopsAfterAnyStepAndResumesToTheSameBits) {
  const Scratch whole_scratch, scratch;
  TrainRun whole = tiny_run(whole_scratch.path());
  whole.recipe.log_every = 10;
  whole.recipe.save_every = 0;
  const TrainResult expected = run_training(whole);
  TrainRun run = tiny_run(scratch.path());
  run.recipe.log_every = 10;
  run.recipe.save_every = 0;
  int steps = 0;
  run.stop = [&] { return ++steps == 13; };
  EXPECT_EQ(run_training(run).steps, 13);
  run.stop = {};
  run.resume = as_saved;
  EXPECT_EQ(run_training(run).validation_loss, expected.validation_loss);
  std::vector<std::int64_t> lines;
  for (const auto& line : log_of(run.out)) lines.push_back(line["step"]);
  EXPECT_EQ(lines, (std::vector<std::int64_t>{10, 13, 20}));
  EXPECT_EQ(log_of(run.out)[0], log_of(whole.out)[0]);
}

TEST(RunTraining, KeepsItsTimeBudget) {
  const Scratch scratch;
  TrainRun run = tiny_run(scratch.path());
  run.recipe.save_every = 0;
  run.recipe.steps = 1000000;
  run.recipe.warmup_steps = 1000;
  run.recipe.time_budget_s = 3.0;
  const auto begin = std::chrono::steady_clock::now();
  const TrainResult result = run_training(run);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GE(result.steps, 2);  // one before it is shortened, one after, however slow the machine
  EXPECT_LT(result.steps, 1000000);
  EXPECT_LT(seconds, 30.0);  // a loaded machine may take longer than it promised itself
  const auto log = log_of(run.out);
  EXPECT_EQ(log.back()["step"], log.back()["steps"]);
  run.resume = as_saved;  // at its end, though short of the steps that were asked for
  EXPECT_EQ(run_training(run).steps, result.steps);
  // The cosine came to its end.
  EXPECT_NEAR(log.back()["lr"].get<double>(), 0.1 * run.recipe.peak_lr, 1e-6);
}

TEST(RunTraining, SaysWhatIsWrongWithItsInput) {
  const Scratch scratch;
  TrainRun run = tiny_run(scratch.path());
  const auto message = [&](const auto& change) {
    TrainRun broken = run;
    change(broken);
    return message_of([&] { run_training(broken); });
  };
  const auto write = [&](const char* name, const std::string& text) {
    std::ofstream(scratch.path() / name) << text;
    return scratch.path() / name;
  };
  const fs::path empty = write("empty.txt", ""), tiny = write("short.txt", "a short text");
  EXPECT_TRUE(contains(message([&](TrainRun& r) { r.data = {empty}; }), "empty.txt"));
  EXPECT_TRUE(contains(message([&](TrainRun& r) { r.data = {tiny}; }), "tokens"));
  EXPECT_TRUE(
      contains(message([&](TrainRun& r) { r.data = {"/nonexistent/x"}; }), "/nonexistent/x"));
  EXPECT_TRUE(contains(message([&](TrainRun& r) { r.resume = as_saved; }), "no checkpoint"));
  EXPECT_TRUE(contains(message([&](TrainRun& r) { r.recipe.steps = 0; }), "steps"));
  EXPECT_TRUE(contains(message([&](TrainRun& r) { r.config.vocab_size = 100; }), "tokenizer"));
  EXPECT_TRUE(contains(message([&](TrainRun& r) { r.config.hidden_size = 0; }), "hidden_size"));
  EXPECT_TRUE(
      contains(message([&](TrainRun& r) { r.recipe.model = scratch.path(); }), "tokenizer"));
  EXPECT_TRUE(contains(message([&](TrainRun& r) { r.out = empty / "run"; }), "empty.txt"));
}

TEST(RunTraining, LeavesAloneWhatIsNotItsOwn) {
  const Scratch scratch;
  const TrainRun run = tiny_run(scratch.path());
  fs::create_directories(run.out);
  std::ofstream(run.out / "log.jsonl") << "the only copy";
  EXPECT_TRUE(contains(message_of([&] { run_training(run); }), "log.jsonl"));
  EXPECT_EQ(io::read_file(run.out / "log.jsonl"), "the only copy");
  fs::remove(run.out / "log.jsonl");
  fs::create_directories(run.out / "step-1");
  EXPECT_TRUE(contains(message_of([&] { run_training(run); }), "step-1"));
  EXPECT_TRUE(fs::exists(run.out / "step-1"));
  fs::remove(run.out / "step-1");
  EXPECT_EQ(run_training(run).steps, 20);
}

TEST(RunTraining, RefusesAModelWithAnUnknownActivation) {
  const Scratch scratch;
  TrainRun run = tiny_run(scratch.path());
  run.recipe.save_every = 0;
  run.recipe.steps = 3;
  run.recipe.warmup_steps = 1;
  const TrainResult result = run_training(run);
  json config = json::parse(io::read_file(result.checkpoint / "config.json"));
  config["hidden_act"] = "swish_of_doom";
  io::write_file_atomically(result.checkpoint / "config.json", config.dump());
  run.recipe.model = result.checkpoint;
  run.out = scratch.path() / "next";
  EXPECT_TRUE(contains(message_of([&] { run_training(run); }), "swish_of_doom"));
}

// Run by the test below in a process of its own, which is then killed.
TEST(TrainingChild, DISABLED_RunsUntilKilled) {
  const char* directory = std::getenv(kChildVariable);
  ASSERT_NE(directory, nullptr);
  TrainRun run = tiny_run(directory);
  run.recipe.steps = 100000;
  if (io::latest_checkpoint(run.out)) run.resume = as_saved;
  run_training(run);
}

TEST(RunTraining, AKilledProcessLeavesACheckpointThatContinuesTheSameRun) {
  const Scratch scratch;
  ASSERT_EQ(setenv(kChildVariable, scratch.path().c_str(), 1), 0);
  char program[] = "/proc/self/exe";
  char filter[] = "--gtest_filter=TrainingChild.*";
  char disabled[] = "--gtest_also_run_disabled_tests";
  const fs::path latest = scratch.path() / "run" / "latest";
  std::int64_t reached = 0;
  for (int round = 0; round < 5; ++round) {
    char* const arguments[] = {program, filter, disabled, nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, program, nullptr, nullptr, arguments, environ), 0);
    // Wait for progress, then kill at some moment; almost all of the time goes into saving.
    const fs::path before = fs::exists(latest) ? fs::read_symlink(latest) : fs::path();
    for (int i = 0; i < 6000; ++i) {
      std::error_code ignored;
      if (fs::exists(latest, ignored) && fs::read_symlink(latest, ignored) != before) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(23 + 17 * round));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << status;

    const auto checkpoint = io::latest_checkpoint(scratch.path() / "run");
    ASSERT_TRUE(checkpoint);
    load_model(checkpoint->string());
    const std::int64_t step = std::stoll(checkpoint->filename().string().substr(5));
    EXPECT_GT(step, reached);
    reached = step;
  }
  // To a definite end, and the same without any interruption.
  const auto finish = [&](const fs::path& directory, bool resume) {
    TrainRun run = tiny_run(directory);
    run.recipe.steps = 100000;
    if (resume) run.resume = as_saved;
    std::int64_t step = resume ? reached : 0;
    run.stop = [&] { return ++step == reached + 3; };
    run_training(run);
    return log_of(run.out);
  };
  const Scratch calm;
  EXPECT_EQ(finish(scratch.path(), true), finish(calm.path(), false));
}

TEST(RunTraining, LearnsShakespeare) {
  TWELL_DATA_OR_SKIP(text, "corpora/tinyshakespeare.txt");
  const Scratch scratch;
  TrainRun run;
  run.out = scratch.path() / "run";
  run.data = {text};
  run.config = test::tiny_config();
  run.config.hidden_size = 64;
  run.config.intermediate_size = 256;
  run.config.head_dim = 32;
  run.config.vocab_size = 0;
  run.config.max_position_embeddings = 64;
  run.recipe = test::tiny_recipe();
  run.recipe.bpe_vocab = 512;
  run.recipe.context = 64;
  run.recipe.micro_batch = 16;
  run.recipe.steps = 80;
  run.recipe.warmup_steps = 8;
  run.recipe.peak_lr = 1e-2;
  run.recipe.l1 = 3e-2;
  run.recipe.l1_warmup = 20;
  const TrainResult result = run_training(run);
  EXPECT_NEAR(result.loss_first.value(), std::log(512.0), 0.2);
  EXPECT_LT(result.loss_last.value(), 5.0);
  EXPECT_LT(*result.validation_loss, 5.2);
  EXPECT_LT(result.nnz_mean, 0.2 * 256);
}

}  // namespace
}  // namespace twell::lm
