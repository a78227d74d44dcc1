// Likelihoods and statistics against the plain forward pass.
#include "engine/score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "engine/ffn_statistics.h"
#include "tests/decoder/tiny_model.h"
#include "tests/support/message_of.h"

namespace twell::lm {
namespace {

using test::fp32_bound;
using test::message_of;
using test::ScratchDirectory;
using test::tiny_config;
using test::tiny_model;
using Tokens = std::vector<std::int64_t>;

Tokens random_tokens(std::size_t count, unsigned seed = 5) {
  std::mt19937 random(seed);
  Tokens out;
  while (out.size() < count) out.push_back(static_cast<std::int64_t>(random() % 211));
  return out;
}

// log p of tokens[first ...] in one forward pass, in fp64 from the logits on.
double expected_score(Model& model, const Tokens& tokens, std::size_t first,
                      bool* greedy = nullptr) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model.forward(at::tensor(tokens).unsqueeze(0))[0].to(at::kDouble);
  const at::Tensor log_p = at::log_softmax(logits, -1);
  double sum = 0.0;
  if (greedy != nullptr) *greedy = true;
  for (std::size_t i = first; i < tokens.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) - 1;
    sum += log_p[row][tokens[i]].item<double>();
    if (greedy != nullptr) {
      *greedy &= logits[row].argmax().item<std::int64_t>() == tokens[i];
    }
  }
  return sum;
}

// A log-probability errs by at most twice the logits' bound, and by the fp32 softmax: a sum of 211
// terms and a few roundings of values below 16.
double score_bound(const io::ModelConfig& config, Model& model, const Tokens& tokens) {
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model.forward(at::tensor(tokens).unsqueeze(0));
  return static_cast<double>(tokens.size()) *
         (2 * fp32_bound(config, static_cast<std::int64_t>(tokens.size()), logits) +
          (211 + 2 + 4 * 16) * 0x1.0p-24);
}

TEST(Score, ContinuationsAreSumsOfLogProbabilities) {
  const auto config = tiny_config();
  const auto model = tiny_model(config);
  std::vector<ScoreRequest> requests;
  for (const auto& [context, continuation] :
       {std::pair{1, 1}, {5, 3}, {40, 1}, {1, 40}, {17, 17}, {3, 2}}) {
    requests.push_back({random_tokens(context, context), random_tokens(continuation, 99)});
  }
  // One whose continuation is what the model would say.
  requests.push_back({{1, 2, 3}, {}});
  for (int i = 0; i < 3; ++i) {
    const at::NoGradGuard no_grad;
    Tokens all = requests.back().context;
    all.insert(all.end(), requests.back().continuation.begin(), requests.back().continuation.end());
    requests.back().continuation.push_back(
        model->forward(at::tensor(all).unsqueeze(0))[0][-1].argmax().item<std::int64_t>());
  }
  for (const std::int64_t rows : {1, 32, 2048}) {
    ScoreOptions options;
    options.rows = rows;
    std::int64_t last_done = 0;
    options.on_progress = [&](std::int64_t done, std::int64_t total) {
      EXPECT_GT(done, last_done);
      EXPECT_EQ(total, 7);
      last_done = done;
    };
    const auto scores = score_continuations(*model, requests, options);
    EXPECT_EQ(last_done, 7);
    ASSERT_EQ(scores.size(), requests.size());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Tokens all = requests[i].context;
      all.insert(all.end(), requests[i].continuation.begin(), requests[i].continuation.end());
      bool greedy = false;
      const double expected = expected_score(*model, all, requests[i].context.size(), &greedy);
      EXPECT_NEAR(scores[i].log_likelihood, expected, score_bound(config, *model, all));
      EXPECT_EQ(scores[i].greedy, greedy);
      EXPECT_EQ(scores[i].tokens, static_cast<std::int64_t>(requests[i].continuation.size()));
    }
    EXPECT_TRUE(scores.back().greedy);
  }
}

TEST(Score, LongContextsLoseTheirBeginning) {
  auto config = tiny_config();
  config.max_position_embeddings = 16;
  const auto model = tiny_model(config);
  const Tokens context = random_tokens(40, 1);
  const Tokens continuation = random_tokens(5, 2);
  Tokens kept(context.end() - 12, context.end());
  kept.insert(kept.end(), continuation.begin(), continuation.end());  // 17: the last is not run
  const std::vector<ScoreRequest> requests = {{context, continuation}};
  const auto scores = score_continuations(*model, requests);
  const std::vector<ScoreRequest> shorter = {
      {Tokens(context.end() - 12, context.end()), continuation}};
  EXPECT_EQ(scores[0].log_likelihood, score_continuations(*model, shorter)[0].log_likelihood);
}

TEST(Score, PerplexityScoresEveryTokenOnce) {
  auto config = tiny_config();
  config.max_position_embeddings = 16;
  const auto model = tiny_model(config);
  const Tokens stream = random_tokens(60);
  for (const auto& [window, stride] : {std::pair<std::int64_t, std::int64_t>{0, 0},
                                       {16, 16},
                                       {16, 4},
                                       {5, 5},
                                       {7, 3},
                                       {16, 1},
                                       {1, 1}}) {
    PerplexityOptions options;
    options.window = window;
    options.stride = stride;
    const std::int64_t w = window == 0 ? 16 : window;
    const std::int64_t s = stride == 0 ? w : stride;
    double expected = 0.0;
    std::int64_t scored = 1;
    double bound = 0.0;
    for (std::int64_t begin = 0; scored < 60; begin += s) {
      const std::int64_t end = std::min<std::int64_t>(begin + w + 1, 60);
      // forward() may not see more than the context, so the last token is only a target.
      const Tokens run(stream.begin() + begin, stream.begin() + end - 1);
      const at::NoGradGuard no_grad;
      const at::Tensor log_p =
          at::log_softmax(model->forward(at::tensor(run).unsqueeze(0))[0].to(at::kDouble), -1);
      for (std::int64_t t = scored; t < end; ++t) {
        expected -= log_p[t - begin - 1][stream[static_cast<std::size_t>(t)]].item<double>();
      }
      bound += score_bound(config, *model, run);
      scored = end;
    }
    const Perplexity got = perplexity(*model, stream, options);
    EXPECT_EQ(got.tokens, 59);
    EXPECT_NEAR(got.negative_log_likelihood, expected, bound) << window << " " << stride;
    EXPECT_DOUBLE_EQ(got.perplexity(), std::exp(got.negative_log_likelihood / 59));
  }
}

TEST(Score, MistakesAreErrors) {
  const auto model = tiny_model(tiny_config());
  const auto score = [&](ScoreRequest request) {
    return message_of([&] { score_continuations(*model, {&request, 1}); });
  };
  EXPECT_THAT(score({{}, {1}}), testing::HasSubstr("context is empty"));
  EXPECT_THAT(score({{1}, {}}), testing::HasSubstr("continuation is empty"));
  EXPECT_THAT(score({{1}, Tokens(97, 1)}), testing::HasSubstr("97"));
  EXPECT_THAT(score({{1}, {211}}), testing::HasSubstr("211"));
  const Tokens stream = random_tokens(10);
  const auto ppl = [&](std::span<const std::int64_t> tokens, std::int64_t window,
                       std::int64_t stride) {
    PerplexityOptions options;
    options.window = window;
    options.stride = stride;
    return message_of([&] { perplexity(*model, tokens, options); });
  };
  EXPECT_THAT(ppl({stream.data(), 1}, 0, 0), testing::HasSubstr("at least 2"));
  EXPECT_THAT(ppl(stream, 97, 0), testing::HasSubstr("97"));
  EXPECT_THAT(ppl(stream, 8, 9), testing::HasSubstr("stride"));
}

TEST(FfnStatistics, CountsByLayerPositionAndNeuron) {
  ScratchDirectory directory;
  const auto config = tiny_config();
  const auto trained = tiny_model(config);
  {
    const at::NoGradGuard no_grad;
    auto gate = trained->ffn_parameters(1).gate;
    gate.narrow(0, 10, 22).zero_();  // 22 of 176 neurons of layer 1 are dead
  }
  test::save_model(directory.path(), config, trained->parameters());
  const Tokens stream = random_tokens(50);
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse}) {
    const auto model = load_model(directory.string(), {.path = path});
    ScoreOptions options;
    options.rows = 40;
    const FfnStatistics statistics = measure_ffn(*model, stream, 20, options);
    ASSERT_EQ(statistics.layers().size(), 3U);
    double all = 0.0;
    for (const FfnTotals& layer : statistics.layers()) {
      EXPECT_EQ(layer.rows, 50);
      EXPECT_EQ(std::accumulate(layer.neuron_nnz.begin(), layer.neuron_nnz.end(), 0L), layer.nnz);
      EXPECT_EQ(std::accumulate(layer.position_nnz.begin(), layer.position_nnz.end(), 0L),
                layer.nnz);
      ASSERT_EQ(layer.position_rows.size(), 20U);
      EXPECT_EQ(layer.position_rows[9], 3);  // sequences of 20, 20 and 10
      EXPECT_EQ(layer.position_rows[10], 2);
      EXPECT_GE(static_cast<double>(layer.nnz_max), layer.nnz_mean());
      EXPECT_GT(layer.nnz, 0);
      all += layer.nnz_mean() / 3;
    }
    EXPECT_NEAR(statistics.nnz_mean(), all, 1e-9);
    EXPECT_GE(statistics.layers()[1].dead_fraction(), 22.0 / 176.0);
    for (int n = 10; n < 32; ++n)
      EXPECT_EQ(statistics.layers()[1].neuron_nnz[static_cast<std::size_t>(n)], 0);
    // Random gates with random inputs fire half the time.
    EXPECT_NEAR(statistics.layers()[0].nnz_mean() / 176, 0.5, 0.1);
  }
}

}  // namespace
}  // namespace twell::lm
