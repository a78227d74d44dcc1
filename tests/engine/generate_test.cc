// Generation: batches, limits, streaming, errors.
#include "engine/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <thread>

#include "engine/conversation.h"
#include "tests/decoder/tiny_model.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using test::ScratchDirectory;
using test::tiny_config;
using test::tiny_model;
using Tokens = std::vector<std::int64_t>;

std::vector<Tokens> prompts() { return {{5, 9, 3}, {7}, {1, 2, 3, 4, 5, 6, 7, 8}, {100, 9, 3}}; }

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    return error.what();
  }
  return "no error";
}

TEST(Generate, BatchEqualsSingle) {
  for (const double temperature : {0.0, 1.0}) {
    const auto model = tiny_model(tiny_config());
    GenerateOptions options;
    options.max_tokens = 20;
    options.sampling.temperature = temperature;
    options.sampling.seed = 17;
    options.stop_tokens = Tokens{};
    const auto all = prompts();
    const auto batch = generate(*model, all, options);
    ASSERT_EQ(batch.sequences.size(), all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (temperature > 0.0 && i > 0) break;  // others draw from streams of their own
      const auto alone = generate(*model, {&all[i], 1}, options);
      EXPECT_EQ(batch.sequences[i].tokens, alone.sequences[0].tokens) << "prompt " << i;
    }
  }
}

TEST(Generate, NeighboursDoNotChangeASampledText) {
  const auto model = tiny_model(tiny_config());
  GenerateOptions options;
  options.max_tokens = 20;
  options.sampling = {.temperature = 1.0, .top_p = 0.9, .seed = 3};
  options.stop_tokens = Tokens{};
  auto all = prompts();
  const auto first = generate(*model, all, options);
  all[0] = {50, 51, 52, 53};
  all[3] = {60};
  const auto second = generate(*model, all, options);
  EXPECT_EQ(first.sequences[1].tokens, second.sequences[1].tokens);
  EXPECT_EQ(first.sequences[2].tokens, second.sequences[2].tokens);
  EXPECT_NE(first.sequences[0].tokens, second.sequences[0].tokens);
}

TEST(Generate, GreedyIsTheArgmaxOfTheWholeSequence) {
  const auto model = tiny_model(tiny_config());
  GenerateOptions options;
  options.max_tokens = 12;
  options.stop_tokens = Tokens{};
  Tokens tokens = {5, 9, 3};
  const auto result = generate(*model, {&tokens, 1}, options);
  const at::NoGradGuard no_grad;
  for (const std::int64_t token : result.sequences[0].tokens) {
    const at::Tensor logits = model->forward(at::tensor(tokens).unsqueeze(0))[0];
    EXPECT_EQ(logits[-1].argmax().item<std::int64_t>(), token);
    tokens.push_back(token);
  }
}

TEST(Generate, ARepetitionPenaltyLeavesNoTokenTwice) {
  const auto model = tiny_model(tiny_config());
  GenerateOptions options;
  options.max_tokens = 30;
  options.stop_tokens = Tokens{};
  const auto repeats = [&] {
    const Tokens prompt = {5, 9, 3};
    Tokens all = prompt;
    const auto result = generate(*model, {&prompt, 1}, options);
    for (const std::int64_t token : result.sequences[0].tokens) all.push_back(token);
    std::sort(all.begin(), all.end());
    return std::adjacent_find(all.begin(), all.end()) != all.end();
  };
  EXPECT_TRUE(repeats());
  options.sampling.repetition_penalty = 1e6;  // as large as the logits are small
  EXPECT_FALSE(repeats());
}

TEST(Generate, WhatACacheHoldsIsNotRunAgain) {
  const auto model = tiny_model(tiny_config());
  GenerateOptions options;
  options.max_tokens = 12;
  options.stop_tokens = Tokens{};
  options.sampling.repetition_penalty = 1.1;
  for (const bool steps : {false, true}) {
    options.static_steps = steps;
    const auto whole = generate(*model, prompts(), options);
    KvCache cache = model->make_cache(4, 60, steps);
    const Tokens first = {5, 9}, third = {1, 2, 3, 4, 5, 6, 7};
    const std::vector<Chunk> held = {{0, first}, {2, third}};
    {
      const c10::InferenceMode inference;
      model->hidden_states(held, &cache);
    }
    const auto rest = generate(*model, prompts(), options, cache);
    EXPECT_EQ(rest.timing.prompt_tokens, whole.timing.prompt_tokens - 9);
    for (std::size_t i = 0; i < prompts().size(); ++i) {
      EXPECT_EQ(whole.sequences[i].tokens, rest.sequences[i].tokens) << i;
      EXPECT_EQ(cache.length(static_cast<std::int64_t>(i)), std::ssize(prompts()[i]) + 11);
    }
    EXPECT_THAT(message_of([&] { generate(*model, prompts(), options, cache); }),
                testing::HasSubstr("the cache holds 14 tokens of prompt 0, which has 3"));
    KvCache small = model->make_cache(4, 6, steps);
    EXPECT_THAT(message_of([&] { generate(*model, prompts(), options, small); }),
                testing::HasSubstr("prompt 2 has 8 tokens, the cache room for 6"));
    KvCache other = model->make_cache(3, 60, steps);
    EXPECT_THAT(message_of([&] { generate(*model, prompts(), options, other); }),
                testing::HasSubstr("3 slots for 4 prompts"));
  }
}

TEST(Generate, AConversationRunsWhatIsNew) {
  const auto model = tiny_model(tiny_config());
  Conversation talk(*model, 60);
  EXPECT_EQ(talk.context(), 60);
  EXPECT_EQ(Conversation(*model, 1000).context(), 96);
  GenerateOptions options;
  options.max_tokens = 8;
  options.stop_tokens = Tokens{};
  Tokens so_far = {5, 9, 3};
  const auto turn = [&](std::int64_t run) {
    const auto alone = generate(*model, {&so_far, 1}, options);
    const auto result = talk.generate(so_far, options);
    EXPECT_EQ(result.sequences[0].tokens, alone.sequences[0].tokens);
    EXPECT_EQ(result.timing.prompt_tokens, run);
    const auto& said = result.sequences[0].tokens;
    so_far.insert(so_far.end(), said.begin(), said.end());
  };
  turn(3);
  turn(1);  // the last token was never run
  so_far.insert(so_far.end(), {1, 2, 3});
  turn(4);
  so_far[2] = 77;  // another text from here on
  turn(static_cast<std::int64_t>(so_far.size()) - 2);
  so_far = {5, 9};
  turn(1);  // all is held, and one is run for its logits
  so_far.assign(61, 4);
  EXPECT_THAT(message_of([&] { talk.generate(so_far, options); }),
              testing::HasSubstr("room for 60"));
  so_far = {5, 9};
  turn(2);
  so_far.assign(58, 4);
  EXPECT_EQ(talk.generate(so_far, options).sequences[0].finish, FinishReason::context_full);
}

TEST(Generate, PrefillInPiecesIsTheSame) {
  const auto model = tiny_model(tiny_config());
  GenerateOptions options;
  options.max_tokens = 10;
  const auto whole = generate(*model, prompts(), options);
  for (const std::int64_t rows : {1, 3, 7}) {
    options.prefill_rows = rows;
    const auto pieces = generate(*model, prompts(), options);
    for (std::size_t i = 0; i < prompts().size(); ++i) {
      EXPECT_EQ(whole.sequences[i].tokens, pieces.sequences[i].tokens);
    }
  }
}

TEST(Generate, SparseAndDensePathsWriteTheSameText) {
  ScratchDirectory directory;
  const auto config = tiny_config();
  test::save_model(directory.path(), config, tiny_model(config)->parameters());
  std::vector<std::vector<GeneratedSequence>> texts;
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
    const auto model = load_model(directory.string(), {.path = path});
    texts.push_back(generate(*model, prompts(), {.max_tokens = 30}).sequences);
  }
  for (std::size_t i = 0; i < prompts().size(); ++i) {
    EXPECT_EQ(texts[0][i].tokens, texts[1][i].tokens);
    EXPECT_EQ(texts[0][i].tokens, texts[2][i].tokens);
  }
}

// No state is shared: two models at work at once write what each writes alone.
TEST(Generate, TwoModelsInTwoThreads) {
  ScratchDirectory directory;
  const auto config = tiny_config();
  test::save_model(directory.path(), config, tiny_model(config)->parameters());
  GenerateOptions options;
  options.max_tokens = 30;
  options.stop_tokens = Tokens{};
  const auto write = [&](GeneratedSequence& out, const Tokens& prompt) {
    const auto model = load_model(directory.string(), {.path = FfnPath::sparse});
    out = generate(*model, {&prompt, 1}, options).sequences[0];
  };
  std::array<GeneratedSequence, 2> together, alone;
  std::thread first([&] { write(together[0], prompts()[0]); });
  std::thread second([&] { write(together[1], prompts()[2]); });
  first.join();
  second.join();
  write(alone[0], prompts()[0]);
  write(alone[1], prompts()[2]);
  EXPECT_EQ(together[0].tokens, alone[0].tokens);
  EXPECT_EQ(together[1].tokens, alone[1].tokens);
}

TEST(Generate, StopTokensEndASequenceAndOthersGoOn) {
  const auto model = tiny_model(tiny_config());
  GenerateOptions options;
  options.max_tokens = 30;
  options.stop_tokens = Tokens{};
  const auto free_run = generate(*model, prompts(), options);
  const std::int64_t stop = free_run.sequences[2].tokens[4];
  options.stop_tokens = Tokens{stop};
  const auto stopped = generate(*model, prompts(), options);
  for (std::size_t i = 0; i < prompts().size(); ++i) {
    const Tokens& full = free_run.sequences[i].tokens;
    const auto at = std::find(full.begin(), full.end(), stop);
    const Tokens expected(full.begin(), at == full.end() ? at : at + 1);
    EXPECT_EQ(stopped.sequences[i].tokens, expected);
    EXPECT_EQ(stopped.sequences[i].finish,
              at == full.end() ? FinishReason::max_tokens : FinishReason::stop_token);
  }
  EXPECT_EQ(stopped.sequences[2].finish, FinishReason::stop_token);
}

TEST(Generate, EosOfTheConfigurationStops) {
  auto config = tiny_config();
  GenerateOptions options;
  options.max_tokens = 30;
  const Tokens prompt = {5, 9, 3};
  config.eos_token_ids = {};
  const auto free_run = generate(*tiny_model(config), {&prompt, 1}, options);
  EXPECT_EQ(free_run.sequences[0].tokens.size(), 30U);
  config.eos_token_ids = {static_cast<std::int32_t>(free_run.sequences[0].tokens[3])};
  const auto stopped = generate(*tiny_model(config), {&prompt, 1}, options);
  EXPECT_EQ(stopped.sequences[0].finish, FinishReason::stop_token);
  EXPECT_LE(stopped.sequences[0].tokens.size(), 4U);
}

TEST(Generate, ContextEndsTheText) {
  auto config = tiny_config();
  config.max_position_embeddings = 8;
  const auto model = tiny_model(config);
  GenerateOptions options;
  options.max_tokens = 100;
  options.stop_tokens = Tokens{};
  const std::vector<Tokens> some = {{1, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8}};
  const auto result = generate(*model, some, options);
  // Eight positions are run; the token after the last of them needs none.
  EXPECT_EQ(result.sequences[0].tokens.size(), 6U);
  EXPECT_EQ(result.sequences[1].tokens.size(), 1U);
  EXPECT_EQ(result.sequences[0].finish, FinishReason::context_full);
  EXPECT_EQ(result.sequences[1].finish, FinishReason::context_full);
}

TEST(Generate, StreamingReportsEveryTokenInOrderAndCanStop) {
  const auto model = tiny_model(tiny_config());
  std::vector<Tokens> heard(prompts().size());
  GenerateOptions options;
  options.max_tokens = 10;
  options.stop_tokens = Tokens{};
  options.on_token = [&](std::int64_t sequence, std::int64_t token) {
    auto& to = heard[static_cast<std::size_t>(sequence)];
    to.push_back(token);
    return sequence != 1 || to.size() < 3;
  };
  const auto result = generate(*model, prompts(), options);
  for (std::size_t i = 0; i < heard.size(); ++i) EXPECT_EQ(heard[i], result.sequences[i].tokens);
  EXPECT_EQ(heard[1].size(), 3U);
  EXPECT_EQ(heard[0].size(), 10U);
  EXPECT_EQ(result.sequences[1].finish, FinishReason::stopped_by_caller);
}

TEST(Generate, TimingCountsWhatWasRun) {
  const auto model = tiny_model(tiny_config());
  GenerateOptions options;
  options.max_tokens = 5;
  options.stop_tokens = Tokens{};
  const auto timing = generate(*model, prompts(), options).timing;
  EXPECT_EQ(timing.prompt_tokens, 15);
  EXPECT_EQ(timing.decode_tokens, 16);  // the first of five comes from the prompt
  EXPECT_GT(timing.prefill_tokens_per_s(), 0.0);
  EXPECT_GT(timing.decode_tokens_per_s(), 0.0);
  options.max_tokens = 0;
  const auto none = generate(*model, prompts(), options);
  EXPECT_TRUE(none.sequences[0].tokens.empty());
  EXPECT_EQ(none.timing.decode_tokens_per_s(), 0.0);
}

TEST(Generate, BrokenLogitsAreAnErrorByEitherDecoding) {
  for (const bool steps : {false, true}) {
    for (const SamplingOptions& sampling :
         {SamplingOptions{}, SamplingOptions{.temperature = 1.0, .top_p = 0.9}}) {
      const auto model = tiny_model(tiny_config());
      const at::Tensor norm = model->parameters().back().second;
      {
        const at::NoGradGuard no_grad;
        norm.fill_(std::nanf(""));
      }
      GenerateOptions options;
      options.sampling = sampling;
      options.static_steps = steps;
      EXPECT_THAT(message_of([&] { generate(*model, prompts(), options); }),
                  testing::HasSubstr("the model's logits are NaN or infinite"));
    }
  }
}

TEST(Generate, MistakesAreErrors) {
  const auto model = tiny_model(tiny_config());
  const auto run = [&](std::vector<Tokens> some, GenerateOptions options = {}) {
    return message_of([&] { generate(*model, some, options); });
  };
  EXPECT_THAT(run({}), testing::HasSubstr("no prompt"));
  EXPECT_THAT(run({{1}, {}}), testing::HasSubstr("prompt 1 is empty"));
  EXPECT_THAT(run({Tokens(97, 1)}),
              testing::AllOf(testing::HasSubstr("97"), testing::HasSubstr("96")));
  EXPECT_EQ(run({Tokens(96, 1)}), "no error");
  EXPECT_THAT(run({{211}}), testing::HasSubstr("211"));
  EXPECT_THAT(run({{-1}}), testing::HasSubstr("-1"));
  EXPECT_THAT(run({{1}}, {.max_tokens = -1}), testing::HasSubstr("max_tokens"));
  EXPECT_THAT(run({{1}}, {.max_tokens = 1, .sampling = {.top_p = 2.0}}),
              testing::HasSubstr("top_p"));
}

}  // namespace
}  // namespace twell::lm
