// A mixture of experts: where tokens go, what comes of it, and what is told of it.
#include "decoder/experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "convert/prepare.h"
#include "decoder/prepared_file.h"
#include "engine/ffn_statistics.h"
#include "tests/decoder/other_architectures.h"
#include "tests/decoder/tiny_model.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kWidth = 32, kNeurons = 48, kExperts = 5;

struct Mixture {
  std::vector<FfnParameters> parameters;
  at::Tensor router;
  Experts experts;
};

Mixture make_mixture(FfnPath path, io::ExpertSpec spec) {
  at::manual_seed(3);
  std::vector<FfnParameters> parameters;
  std::vector<std::unique_ptr<FeedForward>> layers;
  const ActivationChoice relu{.kind = io::HiddenAct::relu};
  for (std::int64_t e = 0; e < kExperts; ++e) {
    FfnParameters p;
    p.gate = at::randn({kNeurons, kWidth});
    p.up = at::randn({kNeurons, kWidth});
    p.down = at::randn({kWidth, kNeurons});
    layers.push_back(path == FfnPath::dense ? make_dense_feed_forward(p, relu)
                                            : make_sparse_feed_forward(p, relu, path));
    parameters.push_back(p);
  }
  const at::Tensor router = at::randn({kExperts, kWidth});
  return {std::move(parameters), router, Experts(router, std::move(layers), spec)};
}

class Keeper final : public FfnObserver {
 public:
  explicit Keeper(bool hidden = false) : hidden_(hidden) {}
  bool wants_hidden() const override { return hidden_; }
  bool wants_counts() const override { return true; }
  void observe(const FfnActivity& activity) override { seen.push_back(activity); }
  std::vector<FfnActivity> seen;

 private:
  bool hidden_;
};

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Experts, TheHighestScoresChooseAndShare) {
  const at::Tensor scores = at::tensor({0.5F, -1.0F, 2.0F, 0.25F}).view({1, 4});
  const Routing sigmoid = route(scores, {.count = 4, .active = 2});
  EXPECT_TRUE(at::equal(sigmoid.experts, at::tensor(std::vector<std::int64_t>{2, 0}).view({1, 2})));
  const double open[] = {1 / (1 + std::exp(-2.0)), 1 / (1 + std::exp(-0.5))};
  EXPECT_NEAR(sigmoid.shares[0][0].item<double>(), open[0] / (open[0] + open[1]), 1e-6);
  const Routing softmax = route(scores, {.count = 4, .active = 3, .softmax = true});
  const double total = std::exp(2.0) + std::exp(0.5) + std::exp(0.25);
  EXPECT_NEAR(softmax.shares[0][2].item<double>(), std::exp(0.25) / total, 1e-6);
}

// Every number of tokens, also so few that experts get none; each token as if it were alone.
TEST(Experts, AreTheirDefinition) {
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
    for (const std::int64_t rows : {0, 1, 2, 7, 80}) {
      SCOPED_TRACE(rows);
      Mixture m = make_mixture(path, {.count = kExperts, .active = 2});
      const at::NoGradGuard no_grad;
      const at::Tensor x = at::randn({rows, kWidth});
      const Routing routing = m.experts.route(x);
      const at::Tensor y = m.experts.forward(x, 0, nullptr);
      ASSERT_EQ(y.sizes(), x.sizes());
      for (std::int64_t t = 0; t < rows; ++t) {
        at::Tensor exact = at::zeros({kWidth}, at::kDouble);
        for (std::int64_t i = 0; i < 2; ++i) {
          const auto e = static_cast<std::size_t>(routing.experts[t][i].item<std::int64_t>());
          const FfnParameters& p = m.parameters[e];
          const auto times = [&](const at::Tensor& w, const at::Tensor& v) {
            return w.to(at::kDouble).mv(v.to(at::kDouble));
          };
          const at::Tensor h = at::relu(times(p.gate, x[t])) * times(p.up, x[t]);
          exact += times(p.down, h) * routing.shares[t][i].item<double>();
        }
        // Sums of 32 and 48 terms of about 32 · 32: 2^-24 · (3 · 32 + 48) of 1e3, generously.
        EXPECT_LE((y[t] - exact).abs().max().item<double>(), 1e-2);
      }
    }
  }
}

TEST(Experts, ObserversSeeOneLayer) {
  constexpr std::int64_t kRows = 40;
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse}) {
    Mixture m = make_mixture(path, {.count = kExperts, .active = 2});
    const at::NoGradGuard no_grad;
    const at::Tensor x = at::randn({kRows, kWidth});
    Keeper keeper;
    m.experts.forward(x, 7, &keeper);
    ASSERT_EQ(keeper.seen.size(), 1U);
    const FfnActivity& seen = keeper.seen[0];
    EXPECT_EQ(seen.layer, 7);
    EXPECT_EQ(seen.rows, kRows);
    EXPECT_EQ(seen.neurons, kExperts * kNeurons);
    EXPECT_EQ(seen.path, path);
    const at::Tensor chosen = m.experts.route(x).experts;
    std::vector<std::int32_t> fired(kRows);
    std::vector<std::int64_t> neurons(kExperts * kNeurons);
    for (std::int64_t t = 0; t < kRows; ++t) {
      for (std::int64_t i = 0; i < 2; ++i) {
        const std::int64_t e = chosen[t][i].item<std::int64_t>();
        const at::Tensor g = m.parameters[static_cast<std::size_t>(e)].gate.mv(x[t]);
        for (std::int64_t n = 0; n < kNeurons; ++n) {
          const bool fires = g[n].item<float>() > 0;
          fired[static_cast<std::size_t>(t)] += fires ? 1 : 0;
          neurons[static_cast<std::size_t>(e * kNeurons + n)] += fires ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(seen.counts.row_nnz, fired);
    EXPECT_EQ(seen.counts.neuron_nnz, neurons);
    Keeper wants_hidden(true);
    EXPECT_THAT(message_of([&] { m.experts.forward(x, 0, &wants_hidden); }),
                HasSubstr("mixture of experts"));
  }
}

TEST(Experts, SayWhatTheyAre) {
  const Mixture m = make_mixture(FfnPath::sparse, {.count = kExperts, .active = 2});
  EXPECT_THAT(m.experts.describe(1), HasSubstr("2 of 5 experts for each token"));
  EXPECT_EQ(m.experts.path(), FfnPath::sparse);
  EXPECT_GT(m.experts.own_bytes(), 0);
}

// What is made for one feed-forward layer a block is refused by name, and nothing is changed.
TEST(Experts, AreRefusedWhereOneLayerIsExpected) {
  io::ModelConfig config = test::tiny_config();
  config.architecture = &test::architecture("smallthinker");
  config.block = config.architecture->block;
  config.block.experts.count = 4;
  config.block.experts.active = 2;
  const auto model = test::tiny_model(config);
  const test::ScratchDirectory directory;
  test::save_model(directory.path(), config, model->parameters());
  const auto loaded = load_model(directory.string(), {.path = FfnPath::sparse});
  EXPECT_THAT(message_of([&] { (void)loaded->ffn_parameters(1); }),
              HasSubstr("layer 1 is a mixture of 4 experts"));
  EXPECT_THAT(message_of([&] { (void)loaded->ffn_names(0); }), HasSubstr("experts"));
  EXPECT_THAT(message_of([&] { loaded->set_feed_forward(0, nullptr); }), HasSubstr("experts"));
  std::vector<std::int64_t> tokens(64);
  std::iota(tokens.begin(), tokens.end(), 1);
  EXPECT_THAT(message_of([&] { prepare_model(directory.string(), tokens, {}); }),
              HasSubstr("experts"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / kPreparedFile));
  const FfnStatistics statistics = measure_ffn(*loaded, tokens);
  EXPECT_EQ(statistics.layers()[2].neuron_nnz.size(), 4U * 176U);
}

}  // namespace
}  // namespace twell::lm
