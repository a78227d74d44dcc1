// Dense, prepacked and sparse feed-forward layers against the definition in fp64.
#include "decoder/feed_forward.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <cstdlib>
#include <tuple>

#include "decoder/sparse_operators.h"
#include "decoder/weights.h"
#include "device/device.h"
#include "tests/decoder/exact_layer.h"
#include "tests/decoder/operator_calls.h"
#include "tests/support/message_of.h"
#include "tests/support/slow_runtime.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

using test::Exact;
using test::exact;
using test::FfnCalls;
using test::Layer;
using test::make_layer;
using test::message_of;
using test::SlowRuntime;
using Case = test::LayerCase;

class Paths : public testing::TestWithParam<Case> {};

TEST_P(Paths, AgreeWithTheDefinition) {
  const at::NoGradGuard no_grad;
  const Case c = GetParam();
  // Odd sizes: tails of panels and of vectors.
  for (const auto& [width, neurons] : {std::pair{64, 176}, std::pair{40, 93}, std::pair{1, 1}}) {
    const Layer layer = make_layer(c, width, neurons);
    std::vector<std::unique_ptr<FeedForward>> paths;
    paths.push_back(make_dense_feed_forward(layer.parameters, layer.activation));
    if (io::yields_zeros(c.act)) {
      for (const FfnPath path : {FfnPath::sparse, FfnPath::automatic}) {
        paths.push_back(make_sparse_feed_forward(layer.parameters, layer.activation, path));
      }
      FfnParameters neuron_major = layer.parameters;
      neuron_major.down = layer.parameters.down.t().contiguous().t();
      paths.push_back(make_sparse_feed_forward(neuron_major, layer.activation));
    }
    for (const std::int64_t rows : {1, 2, 17, 70, 0}) {
      const at::Tensor x = at::randn({rows, width}).to(c.dtype);
      const Exact expected = exact(layer, x);
      for (const auto& path : paths) {
        for (int repeat = 0; repeat < 2; ++repeat) {  // automatic changes its mind after a call
          const at::Tensor y = path->forward(x, 0, nullptr);
          ASSERT_EQ(y.sizes(), x.sizes());
          ASSERT_EQ(y.scalar_type(), c.dtype);
          if (rows == 0) continue;
          const at::Tensor excess = (y.to(at::kDouble) - expected.y).abs() - expected.bound;
          EXPECT_LE(excess.max().item<double>(), 0.0)
              << path->describe(rows) << ", " << rows << " rows";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Paths,
                         testing::Values(Case{io::HiddenAct::relu, true, at::kFloat},
                                         Case{io::HiddenAct::relu, false, at::kFloat},
                                         Case{io::HiddenAct::relu, true, at::kBFloat16},
                                         Case{io::HiddenAct::relu, false, at::kBFloat16},
                                         Case{io::HiddenAct::relu_squared, true, at::kFloat},
                                         Case{io::HiddenAct::relu_squared, true, at::kBFloat16},
                                         Case{io::HiddenAct::fat_relu, true, at::kFloat},
                                         Case{io::HiddenAct::fat_relu, false, at::kBFloat16}));

using io::HiddenAct;
INSTANTIATE_TEST_SUITE_P(
    Forms, Paths,
    testing::Values(
        Case{HiddenAct::relu, true, at::kFloat, true},
        Case{HiddenAct::relu, false, at::kBFloat16, true},
        Case{HiddenAct::silu, true, at::kFloat, true, Activation::relu, true},
        Case{HiddenAct::relu, true, at::kFloat, false, Activation::relu},
        Case{HiddenAct::relu, true, at::kBFloat16, true, Activation::relu},
        Case{HiddenAct::relu, true, at::kFloat, false, Activation::relu_squared, true},
        Case{HiddenAct::relu_squared, true, at::kFloat, false, Activation::identity, true},
        Case{HiddenAct::relu_squared, true, at::kBFloat16, false, Activation::identity, true},
        Case{HiddenAct::relu, false, at::kBFloat16, true, Activation::identity, true},
        Case{HiddenAct::fat_relu, true, at::kBFloat16, true, Activation::relu, true}));

TEST(Weights, SpreadRowsLieAnOddNumberOfLinesApart) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t cols : {1, 31, 32, 33, 64, 2048, 2080}) {
      const at::Tensor spread = allocate_spread_weights(3, cols, dtype);
      EXPECT_EQ(spread.size(1), cols);
      EXPECT_GE(spread.stride(0), cols);
      const auto bytes = spread.stride(0) * static_cast<std::int64_t>(spread.element_size());
      EXPECT_EQ(bytes % 128, 64) << cols;
      EXPECT_LE(bytes, cols * static_cast<std::int64_t>(spread.element_size()) + 127);
    }
  }
}

// What oneDNN asks for, to reorder weights of bf16.
bool reorders_bf16() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}
constexpr const char* kNoReordering = "oneDNN reorders no bf16 weights on this processor";

TEST(FeedForward, PrepackedWeightsGiveTheDenseResult) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    if (dtype == at::kBFloat16 && !reorders_bf16()) GTEST_SKIP() << kNoReordering;
    const Layer layer = make_layer({io::HiddenAct::relu, true, dtype}, 64, 176);
    const auto prepacked = make_dense_feed_forward(layer.parameters, layer.activation, true);
    for (const std::int64_t rows : {1, 33}) {
      const at::Tensor x = at::randn({rows, 64}).to(dtype);
      const Exact expected = exact(layer, x);
      const at::Tensor y = prepacked->forward(x, 0, nullptr).to(at::kDouble);
      EXPECT_LE(((y - expected.y).abs() - expected.bound).max().item<double>(), 0.0);
    }
    EXPECT_EQ(prepacked->own_bytes(), 3 * 64 * 176 * static_cast<std::int64_t>(elementSize(dtype)));
  }
}

// Fused into a GEMM or not: a token that is not a number stays one, and spoils no other.
TEST(FeedForward, PrepackedWeightsKeepNan) {
  const at::NoGradGuard no_grad;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool prepack : {false, true}) {
    if (prepack && !reorders_bf16()) GTEST_SKIP() << kNoReordering;
    for (const bool in_gate : {false, true}) {
      // A multiple of 32: with AMX, oneDNN reads beyond rows of another width, into the next
      // token's, and multiplies that by zeros.
      const Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 192);
      const at::Tensor x = at::randn({20, 64}).to(at::kBFloat16);
      (in_gate ? layer.parameters.gate : x)[3][5] = nan;
      const auto dense = make_dense_feed_forward(layer.parameters, layer.activation, prepack);
      const at::Tensor bad = dense->forward(x, 0, nullptr).isnan().sum(1);
      EXPECT_TRUE(at::equal(bad, at::full({20}, in_gate ? 64 : 0, at::kLong)
                                     .index_fill(0, at::tensor({3}, at::kLong), 64)));
    }
  }
}

struct Recorder final : FfnObserver {
  bool wants_counts() const override { return true; }
  void observe(const FfnActivity& activity) override { last = activity; }
  FfnActivity last;
};

TEST(FeedForward, CountsAreTheSameOnEveryPath) {
  const at::NoGradGuard no_grad;
  const Layer layer = make_layer({io::HiddenAct::relu, true, at::kFloat}, 64, 176);
  const at::Tensor x = at::randn({37, 64});
  Recorder dense, sparse;
  make_dense_feed_forward(layer.parameters, layer.activation)->forward(x, 4, &dense);
  make_sparse_feed_forward(layer.parameters, layer.activation)->forward(x, 4, &sparse);
  const at::Tensor fired = at::linear(x, layer.parameters.gate).gt(0);
  for (const Recorder* recorder : {&dense, &sparse}) {
    EXPECT_EQ(recorder->last.layer, 4);
    EXPECT_EQ(recorder->last.rows, 37);
    EXPECT_EQ(recorder->last.neurons, 176);
    const FfnCounts expected = counts_of(fired.sum(1), fired.sum(0));
    EXPECT_EQ(recorder->last.counts.row_nnz, expected.row_nnz);
    EXPECT_EQ(recorder->last.counts.neuron_nnz, expected.neuron_nnz);
  }
  EXPECT_EQ(dense.last.path, FfnPath::dense);
  EXPECT_EQ(sparse.last.path, FfnPath::sparse);
}

TEST(FeedForward, AutomaticFollowsTheDensity) {
  const at::NoGradGuard no_grad;
  Layer layer = make_layer({io::HiddenAct::relu, true, at::kFloat}, 64, 176);
  const auto layer_path = [&](FeedForward& ffn, const at::Tensor& x) {
    Recorder recorder;
    ffn.forward(x, 0, &recorder);
    return recorder.last.path;
  };
  const auto ffn = make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::automatic);
  const at::Tensor half_dense = at::randn({64, 64});
  const at::Tensor silent = at::zeros({64, 64});
  EXPECT_EQ(layer_path(*ffn, silent.narrow(0, 0, 31)), FfnPath::sparse);  // nothing is known yet
  const std::int64_t sparse_bytes = ffn->own_bytes();
  EXPECT_EQ(layer_path(*ffn, half_dense), FfnPath::sparse);  // nothing fired so far
  EXPECT_EQ(layer_path(*ffn, half_dense), FfnPath::dense);   // about 50 %
  // The packed gate, down transposed, and up where its rows are spread; then packed up and down.
  const bool spread = tuning_of(default_cpu_tier()).gather_columns > 0;
  const std::int64_t matrix = 176 * 64 * 4, spread_matrix = 176 * spread_stride(64, 4) * 4;
  EXPECT_EQ(sparse_bytes, spread ? matrix + 2 * spread_matrix : 2 * matrix);
  EXPECT_EQ(ffn->own_bytes(), sparse_bytes + 2 * matrix);
  int calls = 0;
  while (layer_path(*ffn, silent) == FfnPath::dense && calls < 20) ++calls;
  EXPECT_LE(calls, 16);  // density is sampled every sixteenth call
  EXPECT_EQ(layer_path(*ffn, silent), FfnPath::sparse);
}

// The first call decides, once: results do not depend on what else a layer has seen.
TEST(FeedForward, TheFirstInputsChooseTheFormOfTheGate) {
  if (tuning_of(default_cpu_tier()).screen_limit == 0) {
    GTEST_SKIP() << name_of(default_cpu_tier()) << " screens no gate";
  }
  const at::NoGradGuard no_grad;
  const Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 176);
  const std::int64_t gate = layer.parameters.gate.nbytes();
  const at::Tensor silent = at::zeros({64, 64}, at::kBFloat16);
  const at::Tensor busy = at::randn({64, 64}).to(at::kBFloat16);  // half of the neurons fire
  const auto screen = static_cast<std::int64_t>(screen_bytes(176, 64));
  for (const auto& [first, form, more] :
       {std::tuple{silent, "screened gate", screen},
        {busy, "packed gate", std::int64_t{0}},
        {silent.narrow(0, 0, 31), "packed gate", std::int64_t{0}}}) {  // too few to choose by
    const auto ffn = make_sparse_feed_forward(layer.parameters, layer.activation);
    const std::int64_t others = ffn->own_bytes() - gate;
    EXPECT_THAT(ffn->describe(1), testing::HasSubstr("its first inputs choose"));
    ffn->forward(first, 0, nullptr);
    const at::Tensor y = ffn->forward(busy, 0, nullptr);
    for (int call = 0; call < 40; ++call) ffn->forward(call % 2 == 0 ? silent : busy, 0, nullptr);
    EXPECT_THAT(ffn->describe(1), testing::HasSubstr(form));
    EXPECT_EQ(ffn->own_bytes() - others, gate + more);  // nothing is padded at 176 x 64
    EXPECT_TRUE(at::equal(ffn->forward(busy, 0, nullptr), y));
  }
}

TEST(FeedForward, NanReachesTheOutputOnEveryPath) {
  const at::NoGradGuard no_grad;
  for (const io::HiddenAct act :
       {io::HiddenAct::relu, io::HiddenAct::relu_squared, io::HiddenAct::fat_relu}) {
    const Layer layer = make_layer({act, true, at::kFloat}, 64, 176);
    at::Tensor x = at::randn({3, 64});
    x[1][5] = std::numeric_limits<float>::quiet_NaN();
    for (const auto& ffn : {make_dense_feed_forward(layer.parameters, layer.activation),
                            make_sparse_feed_forward(layer.parameters, layer.activation)}) {
      const at::Tensor y = ffn->forward(x, 0, nullptr);
      EXPECT_TRUE(y[1].isnan().all().item<bool>());
      EXPECT_FALSE(y[0].isnan().any().item<bool>());
      EXPECT_FALSE(y[2].isnan().any().item<bool>());
    }
  }
}

TEST(FeedForward, MistakesAreErrors) {
  const Layer silu = make_layer({io::HiddenAct::silu, true, at::kFloat}, 8, 8);
  EXPECT_THAT(message_of([&] { make_sparse_feed_forward(silu.parameters, silu.activation); }),
              testing::AllOf(testing::HasSubstr("silu"), testing::HasSubstr("--path dense")));
  Layer layer = make_layer({io::HiddenAct::relu, true, at::kFloat}, 8, 8);
  const auto ffn = make_sparse_feed_forward(layer.parameters, layer.activation);
  EXPECT_THAT(message_of([&] {
                ffn->forward(at::ones({1, 8}).requires_grad_(), 0, nullptr);
              }),
              testing::HasSubstr("inference"));
  struct Wants final : FfnObserver {
    bool wants_hidden() const override { return true; }
    void observe(const FfnActivity&) override {}
  } wants;
  EXPECT_THAT(message_of([&] {
                ffn->forward(at::ones({1, 8}), 0, &wants);
              }),
              testing::HasSubstr("dense"));
  SlowRuntime gpu;
  for (const Case& c :
       {Case{io::HiddenAct::relu, true, at::kBFloat16, true},
        {io::HiddenAct::relu, true, at::kBFloat16, false, Activation::relu},
        {io::HiddenAct::relu, true, at::kBFloat16, false, Activation::identity, true}}) {
    layer = make_layer(c, 8, 8);
    EXPECT_FALSE(is_plain(layer.parameters, layer.activation));
    EXPECT_THAT(message_of([&] {
                  make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::sparse,
                                           nullptr, gpu);
                }),
                testing::AllOf(testing::HasSubstr("mlp_bias"), testing::HasSubstr("--path dense")));
  }
  EXPECT_THAT(message_of([] { parse_ffn_path("fast"); }), testing::HasSubstr("auto"));
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
    EXPECT_EQ(parse_ffn_path(name_of(path)), path);
  }
}

// --- neurons in the order of their popularity, on a device that plays a GPU ---

constexpr std::int64_t kPrompt = kTokensToOrder;
constexpr std::int64_t kHot = 24;

// Its counts arrive at once; kHot neurons are hot from 64 rows on, once they are ordered.
void play_gpu(SlowRuntime& runtime) {
  runtime.done = true;
  runtime.hot = [](const FfnShape&, std::int64_t rows, const std::vector<double>&) {
    return HotChoice{rows >= 64 ? kHot : 0, 1.0};
  };
}

std::vector<at::Tensor> copies_of(const FfnParameters& p) {
  std::vector<at::Tensor> out;
  for (const at::Tensor* t : {&p.gate, &p.up, &p.down}) {
    if (t->defined()) out.push_back(t->clone());
  }
  return out;
}

TEST(PopularNeurons, OrderingChangesTheOrderOfSumsAlone) {
  for (const FfnPath path : {FfnPath::sparse, FfnPath::automatic}) {
    for (const bool gated : {true, false}) {
      // Packed rows with and without padding; gate and up then lie in one matrix.
      for (const auto& [width, neurons] : {std::pair{64, 176}, std::pair{40, 93}}) {
        SCOPED_TRACE(testing::Message() << name_of(path) << " " << gated << " " << neurons);
        SlowRuntime runtime;
        play_gpu(runtime);
        Layer layer = make_layer({io::HiddenAct::relu, gated, at::kBFloat16}, width, neurons);
        if (neurons == 93) {  // neuron-major already
          layer.parameters.down = layer.parameters.down.t().contiguous().t();
        }
        const auto weights = copies_of(layer.parameters);
        std::unique_ptr<FeedForward> ffn;
        {
          const c10::InferenceMode inference;  // made in one mode, reordered in another
          ffn =
              make_sparse_feed_forward(layer.parameters, layer.activation, path, nullptr, runtime);
        }
        const at::NoGradGuard no_grad;
        const at::Tensor x = at::randn({kPrompt, width}).to(at::kBFloat16);
        const Exact expected = exact(layer, x);
        const FfnCalls calls;
        for (int call = 0; call < 4; ++call) {
          EXPECT_EQ(ffn->describe(kPrompt).find("ordered by") != std::string::npos, call > 1);
          const at::Tensor y = ffn->forward(x, 0, nullptr);
          EXPECT_LE(((y.to(at::kDouble) - expected.y).abs() - expected.bound).max().item<double>(),
                    0.0);
          if (path == FfnPath::sparse) {
            EXPECT_EQ(calls.last().stats, call == 0) << "counted once, for kTokens tokens";
            EXPECT_EQ(calls.last().hot, call == 0 ? 0 : kHot);
          }
        }
        ffn->forward(x.narrow(0, 0, 5), 0, nullptr);
        if (path == FfnPath::sparse) {
          EXPECT_EQ(calls.last().hot, 0) << "few rows";
        }
        EXPECT_THAT(ffn->describe(kPrompt), testing::HasSubstr("24 hot neurons"));
        EXPECT_EQ(runtime.waits, 0);
        std::size_t i = 0;
        for (const at::Tensor& now : copies_of(layer.parameters)) {
          EXPECT_TRUE(at::equal(now, weights[i++])) << "the caller's weights are his";
        }
      }
    }
  }
}

TEST(PopularNeurons, TheWeightsAreInTheOrderThatWasCounted) {
  SlowRuntime runtime;
  play_gpu(runtime);
  Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 176);
  // Neuron n fires for about n of 176 tokens; an infinite row of down comes last all the same.
  const at::NoGradGuard no_grad;
  layer.parameters.down.select(1, 175).fill_(std::numeric_limits<float>::infinity());
  at::Tensor x = at::zeros({kPrompt, 64});
  x.select(1, 0).copy_(at::linspace(0, 1, kPrompt).mul(176).floor());
  x.select(1, 1).fill_(1);
  layer.parameters.gate.zero_();
  layer.parameters.gate.select(1, 0).fill_(1);
  layer.parameters.gate.select(1, 1).copy_(at::arange(176) - 176);
  const auto ffn = make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::sparse,
                                            nullptr, runtime);
  const FfnCalls calls;
  for (int call = 0; call < 2; ++call) ffn->forward(x.to(at::kBFloat16), 0, nullptr);
  at::Tensor order = at::arange(175, -1, -1);
  order = at::cat({order.narrow(0, 1, 175), order.narrow(0, 0, 1)});
  EXPECT_TRUE(at::equal(calls.last().up, layer.parameters.up.index_select(0, order)));
  EXPECT_TRUE(at::equal(calls.last().down, layer.parameters.down.t().index_select(0, order)));
}

// What was found before takes the place of counts: the first call has hot neurons, or a screen.
TEST(PopularNeurons, FindingsOrderAndScreenAtOnce) {
  SlowRuntime runtime;
  play_gpu(runtime);
  runtime.screens = {0.9, 0.5};
  const Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 176);
  const at::NoGradGuard no_grad;
  LayerFindings findings{100, std::vector<float>(64, 1.0F), {}, 0.6};
  for (std::int64_t n = 0; n < 176; ++n) findings.fired.push_back(n % 100);
  const auto ffn = make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::sparse,
                                            &findings, runtime);
  EXPECT_THAT(ffn->describe(1), testing::AllOf(testing::HasSubstr("ordered by 100 tokens"),
                                               testing::HasSubstr("screened")));
  EXPECT_THAT(ffn->describe(2), testing::Not(testing::HasSubstr("screened"))) << "0.6 of 0.5";
  const at::Tensor x = at::randn({64, 64}).to(at::kBFloat16);
  const Exact expected = exact(layer, x);
  const FfnCalls calls;
  const at::Tensor y = ffn->forward(x, 0, nullptr);
  EXPECT_EQ(calls.last().hot, kHot);
  EXPECT_FALSE(calls.last().stats) << "nothing is left to count";
  EXPECT_LE(((y.to(at::kDouble) - expected.y).abs() - expected.bound).max().item<double>(), 0.0);
  EXPECT_EQ(runtime.asked.front().rates.front(), 0.99);
  EXPECT_EQ(runtime.waits, 0);
}

TEST(PopularNeurons, ObserversSeeTheNumbersOfTheModel) {
  struct Everything final : FfnObserver {
    bool wants_counts() const override { return true; }
    bool wants_hidden() const override { return hidden; }
    void observe(const FfnActivity& activity) override { last = activity; }
    bool hidden = false;
    FfnActivity last;
  } seen;
  for (const FfnPath path : {FfnPath::sparse, FfnPath::automatic}) {
    SlowRuntime runtime;
    play_gpu(runtime);
    const Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 176);
    const FfnParameters& p = layer.parameters;
    const at::NoGradGuard no_grad;
    // Small integers: every sum is exact, and so is what fires, in any order.
    for (const at::Tensor& w : {p.gate, p.up}) w.copy_(at::randint(-1, 2, w.sizes()));
    const at::Tensor x = at::randint(-1, 2, {kPrompt / 2, 64}).to(at::kBFloat16);
    const at::Tensor gate = at::relu(at::linear(x, p.gate));
    const at::Tensor hidden = gate * at::linear(x, p.up);
    const FfnCounts expected = counts_of(gate.ne(0).sum(1), gate.ne(0).sum(0));
    const auto ffn = make_sparse_feed_forward(p, layer.activation, path, nullptr, runtime);
    for (int call = 0; call < 4; ++call) {
      // Half of the neurons fire: automatic is dense from its second call on, the last one that is
      // counted, and may have reordered weights for oneDNN then.
      EXPECT_EQ(ffn->describe(1).find("ordered by") != std::string::npos, call > 2);
      seen.hidden = path == FfnPath::automatic && call >= 2;
      ffn->forward(x, 0, &seen);
      EXPECT_EQ(seen.last.path,
                path == FfnPath::automatic && call > 0 ? FfnPath::dense : FfnPath::sparse);
      EXPECT_EQ(seen.last.counts.row_nnz, expected.row_nnz);
      EXPECT_EQ(seen.last.counts.neuron_nnz, expected.neuron_nnz);
      EXPECT_EQ(seen.last.gate.defined(), seen.hidden);
      if (seen.hidden) {
        EXPECT_TRUE(at::equal(seen.last.gate, gate));
        EXPECT_TRUE(at::equal(seen.last.hidden, hidden));
      }
    }
  }
}

// A graph goes on reading the memory that it was recorded with, without hot neurons.
TEST(PopularNeurons, RecordingsStayTrue) {
  SlowRuntime runtime;
  play_gpu(runtime);
  const Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 176);
  const at::NoGradGuard no_grad;
  const auto ffn = make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::sparse,
                                            nullptr, runtime);
  const at::Tensor x = at::randn({kPrompt, 64}).to(at::kBFloat16);
  const Exact expected = exact(layer, x);
  const FfnCalls calls;
  ffn->forward(x, 0, nullptr);
  runtime.recording = true;
  ffn->forward(x, 0, nullptr);
  runtime.recording = false;
  const FfnCalls::Call recorded = calls.last();
  EXPECT_FALSE(recorded.stats);
  EXPECT_EQ(recorded.hot, 0) << "no weight moves while a graph is recorded";
  ffn->forward(x, 0, nullptr);
  EXPECT_EQ(calls.last().hot, kHot);
  EXPECT_EQ(calls.last().gate.const_data_ptr(), recorded.gate.const_data_ptr());
  EXPECT_EQ(calls.last().up.const_data_ptr(), recorded.up.const_data_ptr());
  EXPECT_EQ(calls.last().down.const_data_ptr(), recorded.down.const_data_ptr());
  const at::Tensor y = sparse_ffn(x, {recorded.gate, recorded.up, recorded.down, {}, recorded.hot},
                                  {Activation::relu, 0});
  EXPECT_LE(((y.to(at::kDouble) - expected.y).abs() - expected.bound).max().item<double>(), 0.0);
}

}  // namespace
}  // namespace twell::lm
