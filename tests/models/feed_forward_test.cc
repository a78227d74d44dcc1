// Dense, prepacked and sparse feed-forward layers against the definition in fp64.
#include "models/feed_forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <tuple>

#include "models/neuron_popularity.h"
#include "models/sparse_operators.h"
#include "tests/models/operator_calls.h"
#include "tests/models/slow_runtime.h"
#include "twell/status.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

struct Case {
  io::HiddenAct act;
  bool gated;
  at::ScalarType dtype;
};

constexpr float kThreshold = 0.05F;

struct Layer {
  FfnParameters parameters;
  ActivationChoice activation;
};

Layer make_layer(const Case& c, std::int64_t width, std::int64_t neurons) {
  at::manual_seed(3);
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    return (at::randn({rows, cols}) / std::sqrt(static_cast<double>(cols))).to(c.dtype);
  };
  Layer layer;
  layer.activation = {c.act, c.act == io::HiddenAct::fat_relu ? kThreshold : 0.0F};
  if (c.gated) layer.parameters.gate = matrix(neurons, width);
  layer.parameters.up = matrix(neurons, width);
  layer.parameters.down = matrix(width, neurons);
  return layer;
}

// y in fp64 and how far a path with fp32 accumulation may be from it: (n + 2) u per sum of n terms
// with u = 2^-24, and where values are rounded to bf16, 2^-8 for g (twice where squared), u, h, y.
// A gate near zero may fall on the other side; the activations are Lipschitz there, so the same
// bound holds - but for fat_relu, whose step of size `threshold` is allowed for where g is near it.
struct Exact {
  at::Tensor y, bound;
};
Exact exact(const Layer& layer, const at::Tensor& x_in) {
  const FfnParameters& p = layer.parameters;
  const bool bf16 = x_in.scalar_type() == at::kBFloat16;
  const double u32 = 0x1.0p-24;
  const double u16 = bf16 ? 0x1.0p-8 : u32;
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble); };
  const at::Tensor x = wide(x_in);
  const at::Tensor first = wide(p.gated() ? p.gate : p.up);
  const auto width = static_cast<double>(x.size(1));
  const at::Tensor raw = at::linear(x, first);
  const at::Tensor raw_error =
      at::linear(x.abs(), first.abs()) * ((width + 2) * u32) + raw.abs() * u16;
  const at::Tensor g = activate(raw, layer.activation);
  at::Tensor g_error = raw_error + g.abs() * u16;
  if (layer.activation.kind == io::HiddenAct::relu_squared) {
    g_error = (2 * raw.abs() + raw_error) * raw_error + g.abs() * u16;
  }
  if (layer.activation.kind == io::HiddenAct::fat_relu) {
    g_error = g_error + at::where((raw - kThreshold).abs() <= raw_error, raw.abs(), 0.0);
  }
  at::Tensor h = g;
  at::Tensor h_error = g_error;
  if (p.gated()) {
    const at::Tensor up = at::linear(x, wide(p.up));
    const at::Tensor up_error =
        at::linear(x.abs(), wide(p.up).abs()) * ((width + 2) * u32) + up.abs() * u16;
    h = g * up;
    h_error = g_error * (up.abs() + up_error) + g.abs() * up_error + h.abs() * u16;
  }
  const at::Tensor down = wide(p.down);
  Exact out;
  out.y = at::linear(h, down);
  out.bound =
      at::linear(h_error, down.abs()) +
      at::linear(h.abs() + h_error, down.abs()) * ((static_cast<double>(h.size(1)) + 2) * u32) +
      out.y.abs() * u16 + 1e-30;
  return out;
}

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

TEST(FeedForward, PrepackedWeightsGiveTheDenseResult) {
  const at::NoGradGuard no_grad;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
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
    EXPECT_EQ(recorder->last.hidden_units, 176);
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
  EXPECT_EQ(layer_path(*ffn, half_dense), FfnPath::sparse);  // nothing is known yet
  const std::int64_t sparse_bytes = ffn->own_bytes();
  EXPECT_EQ(layer_path(*ffn, half_dense), FfnPath::dense);  // about 50 %
  // The gate as stored beside the packed one, down transposed; then all three once more, reordered.
  const std::int64_t matrix = 64 * 176 * 4;
  EXPECT_EQ(sparse_bytes, 3 * matrix);
  EXPECT_EQ(ffn->own_bytes(), sparse_bytes);  // f32 is not reordered
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

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(FeedForward, MistakesAreErrors) {
  const Layer silu = make_layer({io::HiddenAct::silu, true, at::kFloat}, 8, 8);
  EXPECT_THAT(message_of([&] { make_sparse_feed_forward(silu.parameters, silu.activation); }),
              testing::AllOf(testing::HasSubstr("silu"), testing::HasSubstr("--ffn dense")));
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
  layer.parameters.down_bias = at::zeros({8});
  EXPECT_THAT(message_of([&] { make_sparse_feed_forward(layer.parameters, layer.activation); }),
              testing::HasSubstr("mlp_bias"));
  EXPECT_THAT(message_of([] { parse_ffn_path("fast"); }), testing::HasSubstr("auto"));
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
    EXPECT_EQ(parse_ffn_path(name_of(path)), path);
  }
}

// --- neurons in the order of their popularity, on a device that plays a GPU ---

using test::FfnCalls;
using test::SlowRuntime;

constexpr std::int64_t kPrompt = NeuronPopularity::kTokens;
constexpr std::int64_t kHot = 24;

// Its counts arrive at once; kHot neurons are hot from 64 rows on, once they are ordered.
void play_gpu(SlowRuntime& runtime) {
  runtime.done = true;
  runtime.hot = [](const FfnShape&, std::int64_t rows, const std::vector<double>&) {
    return HotNeurons{rows >= 64 ? kHot : 0, 1.0};
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
          ffn = make_sparse_feed_forward(layer.parameters, layer.activation, path, runtime);
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
  const auto ffn =
      make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::sparse, runtime);
  const FfnCalls calls;
  for (int call = 0; call < 2; ++call) ffn->forward(x.to(at::kBFloat16), 0, nullptr);
  at::Tensor order = at::arange(175, -1, -1);
  order = at::cat({order.narrow(0, 1, 175), order.narrow(0, 0, 1)});
  EXPECT_TRUE(at::equal(calls.last().up, layer.parameters.up.index_select(0, order)));
  EXPECT_TRUE(at::equal(calls.last().down, layer.parameters.down.t().index_select(0, order)));
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
    const auto ffn = make_sparse_feed_forward(p, layer.activation, path, runtime);
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
  const auto ffn =
      make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::sparse, runtime);
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

// --- a screen for few rows, on a device that plays a GPU ---

// Input 0 is 1, and rules out all but every 16th neuron by its weight.
void let_few_fire(const Layer& layer) {
  const at::Tensor bias = at::full({layer.parameters.up.size(0)}, -8.0, at::kBFloat16);
  bias.slice(0, 0, bias.size(0), 16).zero_();
  (layer.parameters.gated() ? layer.parameters.gate : layer.parameters.up).select(1, 0).copy_(bias);
}
at::Tensor inputs_for(std::int64_t rows, std::int64_t width) {
  const at::Tensor x = at::randn({rows, width});
  x.select(1, 0).fill_(1);
  return x.to(at::kBFloat16);
}

TEST(ScreenOnAGpu, IsForCallsOfFewRowsOnceNeuronsAreOrdered) {
  for (const bool gated : {true, false}) {
    // Gate and up in one matrix, and each alone, where packing pads.
    for (const auto& [width, neurons] : {std::pair{64, 176}, std::pair{40, 93}}) {
      SCOPED_TRACE(testing::Message() << gated << " " << neurons);
      SlowRuntime runtime;
      play_gpu(runtime);
      runtime.screens = {0.9, 0.9, 0.9, 0.9, 0.9};
      Layer layer = make_layer({io::HiddenAct::relu, gated, at::kBFloat16}, width, neurons);
      let_few_fire(layer);
      const at::NoGradGuard no_grad;
      const auto ffn =
          make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::sparse, runtime);
      const at::Tensor prompt = inputs_for(kPrompt, width);
      const FfnCalls calls;
      ffn->forward(prompt.narrow(0, 0, 5), 0, nullptr);
      const FfnCalls::Call before = calls.last();
      EXPECT_FALSE(before.screen.defined()) << "neurons are not ordered yet";
      ffn->forward(prompt, 0, nullptr);
      const std::int64_t without = ffn->own_bytes();
      ffn->forward(prompt, 0, nullptr);
      EXPECT_FALSE(calls.last().screen.defined()) << "many rows, hot neurons";
      EXPECT_EQ(calls.last().hot, kHot);
      for (const std::int64_t rows : {1, 5, 6}) {
        const at::Tensor x = inputs_for(rows, width);
        const Exact expected = exact(layer, x);
        const at::Tensor y = ffn->forward(x, 0, nullptr);
        EXPECT_LE(((y.to(at::kDouble) - expected.y).abs() - expected.bound).max().item<double>(),
                  0.0);
        EXPECT_EQ(calls.last().screen.defined(), rows <= 5);
        EXPECT_FALSE(calls.last().stats);
        if (rows > 5) continue;
        // The gate as stored, where the recordings' packed one lies.
        EXPECT_EQ(calls.last().gate.sizes(), (at::IntArrayRef{neurons, width}));
        EXPECT_EQ(ffn->own_bytes() - without,
                  static_cast<std::int64_t>(calls.last().screen.nbytes()));
      }
      EXPECT_THAT(ffn->describe(5), testing::HasSubstr("screened; neurons ordered"));
      EXPECT_THAT(ffn->describe(5), testing::HasSubstr("a screen for up to 5 tokens left"));
      EXPECT_THAT(ffn->describe(6), testing::Not(testing::HasSubstr("screened;")));
      EXPECT_EQ(runtime.waits, 0);
      // What was recorded before reads the same memory and has the same result.
      const at::Tensor x = inputs_for(5, width);
      const Exact expected = exact(layer, x);
      const at::Tensor y =
          sparse_ffn(x, {before.gate, before.up, before.down, {}, 0}, {Activation::relu, 0});
      EXPECT_LE(((y.to(at::kDouble) - expected.y).abs() - expected.bound).max().item<double>(),
                0.0);
    }
  }
}

TEST(ScreenOnAGpu, IsGivenUpByWhatCallsLeave) {
  SlowRuntime runtime;
  play_gpu(runtime);
  runtime.screens = {0.1, 0.1};
  const Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 176);
  let_few_fire(layer);
  const at::NoGradGuard no_grad;
  const auto ffn =
      make_sparse_feed_forward(layer.parameters, layer.activation, FfnPath::automatic, runtime);
  const FfnCalls calls;
  for (int call = 0; call < 3; ++call) ffn->forward(inputs_for(kPrompt, 64), 0, nullptr);
  ffn->forward(inputs_for(1, 64), 0, nullptr);
  EXPECT_TRUE(calls.last().screen.defined());
  const std::int64_t with = ffn->own_bytes();
  // Other inputs, of which the weight rules out fewer neurons; the sparse path is the faster one
  // still, which up to a quarter may fire. One call in 16 is counted.
  int served = 0;
  for (int call = 0; call < 1000; ++call) {
    const at::Tensor x = inputs_for(1, 64);
    x.select(1, 0).fill_(0.15);
    const std::size_t before = calls.size();
    ffn->forward(x, 0, nullptr);
    served += static_cast<int>(calls.size() > before && calls.last().screen.defined());
  }
  EXPECT_GT(served, 0);
  EXPECT_LT(served, 900);
  EXPECT_THAT(ffn->describe(1), testing::HasSubstr("no screen, it left"));
  EXPECT_LT(ffn->own_bytes(), with);
  EXPECT_EQ(runtime.waits, 0);
}

}  // namespace
}  // namespace twell::lm
