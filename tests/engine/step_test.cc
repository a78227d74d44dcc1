// Decoding by steps with static buffers, as a GPU records them: the same tokens as chunk by chunk.
#include <ATen/ExpandUtils.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include "cuda/layer/measured_cost.h"
#include "engine/generate.h"
#include "engine/step_decoder.h"
#include "tests/decoder/operator_calls.h"
#include "tests/decoder/tiny_model.h"
#include "tests/support/slow_runtime.h"
#include "twell/packed.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using test::FfnCalls;
using test::SlowRuntime;
using test::tiny_config;
using test::tiny_model;
using Tokens = std::vector<std::int64_t>;

const std::vector<Tokens> kPrompts = {{5, 6, 7}, {1}, {9, 8, 7, 6, 5, 4, 3}};

std::vector<Tokens> tokens_of(const GenerateResult& result) {
  std::vector<Tokens> out;
  for (const auto& sequence : result.sequences) out.push_back(sequence.tokens);
  return out;
}

void expect_same_text(Model& model, GenerateOptions options) {
  const GenerateResult chunks = generate(model, kPrompts, options);
  options.static_steps = true;
  const GenerateResult steps = generate(model, kPrompts, options);
  EXPECT_EQ(tokens_of(chunks), tokens_of(steps));
  EXPECT_EQ(chunks.timing.decode_tokens, steps.timing.decode_tokens);
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    EXPECT_EQ(chunks.sequences[i].finish, steps.sequences[i].finish);
  }
}

TEST(StepDecoder, SameTokensAsChunkByChunk) {
  const auto model = tiny_model(tiny_config());
  expect_same_text(*model, {.max_tokens = 40, .stop_tokens = Tokens{}});
}

TEST(StepDecoder, SequencesEndOneByOne) {
  const auto model = tiny_model(tiny_config());
  std::map<std::int64_t, int> seen;
  // Each ends at a length of its own; the last goes on to the end of the context.
  GenerateOptions options{.max_tokens = 1000, .stop_tokens = Tokens{}};
  options.on_token = [&seen](std::int64_t sequence, std::int64_t) {
    return sequence == 2 || ++seen[sequence] % 20 < 5 + 7 * sequence;
  };
  const GenerateResult chunks = generate(*model, kPrompts, options);
  seen.clear();
  options.static_steps = true;
  const GenerateResult steps = generate(*model, kPrompts, options);
  EXPECT_EQ(tokens_of(chunks), tokens_of(steps));
  EXPECT_EQ(steps.sequences[0].tokens.size(), 5U);
  EXPECT_EQ(steps.sequences[1].tokens.size(), 12U);
  EXPECT_EQ(steps.sequences[2].finish, FinishReason::context_full);
}

TEST(StepDecoder, SameDrawsAsChunkByChunk) {
  const auto model = tiny_model(tiny_config());
  for (const std::int64_t top_k : {0, 12}) {
    for (const double top_p : {1.0, 0.8}) {
      for (const std::uint64_t seed : {5, 6}) {
        GenerateOptions options{.max_tokens = 25, .stop_tokens = Tokens{}};
        options.sampling = {.temperature = 1.3, .top_k = top_k, .top_p = top_p, .seed = seed};
        expect_same_text(*model, options);
        options.sampling.repetition_penalty = 1.4;
        options.sampling.min_p = 0.01;
        expect_same_text(*model, options);
      }
    }
  }
}

// Also those that come to an end when steps have been recorded.
TEST(StepDecoder, SameBiasesAsChunkByChunk) {
  const auto model = tiny_model(tiny_config());
  const double never = -std::numeric_limits<double>::infinity();
  GenerateOptions options{.max_tokens = 30};
  const Tokens plain = tokens_of(generate(*model, kPrompts, options))[0];
  options.sampling.biases = {{plain[0], never, 1}, {plain[1], never, 9}, {plain[2], 2.0}};
  expect_same_text(*model, options);
  options.stop_tokens = plain;
  options.min_tokens = 12;
  expect_same_text(*model, options);
  for (const Tokens& text : tokens_of(generate(*model, kPrompts, options))) {
    EXPECT_GE(text.size(), 12U);
  }
}

TEST(StepDecoder, RecordsOnceAndAgainAfterSomeSteps) {
  io::ModelConfig config = tiny_config();
  config.num_hidden_layers = 1;
  config.max_position_embeddings = 700;
  const auto model = tiny_model(config);
  const c10::InferenceMode inference;
  KvCache cache = model->make_cache(1, 600, true);
  const Tokens prompt = {3, 4};
  const Chunk chunk{0, prompt};
  const at::Tensor hidden = model->hidden_states({&chunk, 1}, &cache);
  StepDecoder decoder(*model, cache, {});
  Tokens tokens(1, decoder.first(model->head(hidden.narrow(0, 1, 1)))[0]);
  for (int i = 0; i < 520; ++i) tokens.push_back(decoder.next()[0]);
  // All but steps 0, 1, 256 and 512.
  EXPECT_EQ(decoder.replays(), 516);
  const GenerateResult chunks =
      generate(*model, {&prompt, 1}, {.max_tokens = 521, .stop_tokens = Tokens{}});
  EXPECT_EQ(chunks.sequences[0].tokens, tokens);
  EXPECT_EQ(cache.length(0), 522);
}

TEST(StepDecoder, Errors) {
  const auto model = tiny_model(tiny_config());
  KvCache growing = model->make_cache(1, 8);
  EXPECT_THROW(StepDecoder(*model, growing, {}), Error);
  KvCache full = model->make_cache(1, 1, true);
  StepDecoder decoder(*model, full, {});
  (void)decoder.first(at::zeros({1, 211}));
  (void)decoder.next();
  EXPECT_THROW((void)decoder.next(), Error);
  StepDecoder broken(*model, full, {});
  EXPECT_THROW((void)broken.first(at::full({1, 211}, std::nan(""))), Error);
}

// Operations that this PyTorch has no meta kernels for in C++; `where` is called by its attention.
at::Tensor& where_out(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor& out) {
  return out;
}
at::Tensor where(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b) {
  return at::empty(at::infer_size(condition.sizes(), at::infer_size(a.sizes(), b.sizes())),
                   condition.options().dtype(at::result_type(a, b)));
}
at::Tensor relu(const at::Tensor& x) { return at::empty_like(x); }
at::Tensor searchsorted(const at::Tensor&, const at::Tensor& values, bool, bool,
                        std::optional<c10::string_view>, const std::optional<at::Tensor>&) {
  return at::empty_like(values, at::kLong);
}
at::Tensor index_select(const at::Tensor& x, std::int64_t, const at::Tensor& rows) {
  return at::empty({rows.size(0), x.size(1)}, x.options());
}
TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("relu", &relu);
  m.impl("searchsorted.Tensor", &searchsorted);
  m.impl("index_select", &index_select);
  m.impl("where.self", &where);
  m.impl("where.self_out", &where_out);
}

// Shapes of torch.ops.twell, which C++ has kernels for where there is data.
at::Tensor pack_weight(const at::Tensor& w) {
  const std::int64_t n = packed_extent(WeightType::bf16, w.size(0), w.size(1));
  return at::empty({w.size(0), n, 1}, w.options());
}
at::Tensor ffn(const at::Tensor& x, const c10::List<std::optional<at::Tensor>>&,
               const std::optional<at::Tensor>&, c10::string_view, std::int64_t) {
  return at::empty_like(x);
}
TORCH_LIBRARY_IMPL(twell, Meta, m) {
  m.impl("pack_weight", &pack_weight);
  m.impl("ffn", &ffn);
}

// Tensors without data: whatever asks for a value, or touches memory from the host, fails.
void expect_nothing_read_back(at::ScalarType dtype, std::optional<FfnPath> path) {
  // Counts, which do go to the host, are not taken while recording.
  static SlowRuntime runtime;
  runtime.recording = true;
  const auto model = make_model(tiny_config(), dtype, 1, at::kMeta);
  const c10::InferenceMode inference;
  for (std::int64_t layer = 0; path && layer < model->layers(); ++layer) {
    model->set_feed_forward(
        layer, make_sparse_feed_forward(model->ffn_parameters(layer), model->activation(), *path,
                                        nullptr, runtime));
  }
  KvCache cache = model->make_cache(3, 20);
  EXPECT_TRUE(cache.fixed());
  const auto ids = at::zeros({3}, at::TensorOptions(at::kLong).device(at::kMeta));
  const at::Tensor hidden = model->step(ids, ids, cache);
  EXPECT_EQ(hidden.sizes(), (at::IntArrayRef{3, 64}));
  const at::Tensor logits = model->head(hidden);
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1.0},
        SamplingOptions{.temperature = 0.7, .top_p = 0.9},
        SamplingOptions{.temperature = 0.7, .min_p = 0.1},
        SamplingOptions{.temperature = 0.7, .top_k = 9, .top_p = 0.9, .min_p = 0.1}}) {
    EXPECT_EQ(
        sample_rows(logits, options, at::zeros({3}, ids.options().dtype(at::kDouble))).sizes(),
        (at::IntArrayRef{3}));
  }
  // Prompts: their tokens come from the host, nothing goes back to it.
  const std::vector<Chunk> chunks = {{0, kPrompts[0]}, {1, kPrompts[1]}, {2, kPrompts[2]}};
  EXPECT_EQ(model->hidden_states(chunks, &cache).sizes(), (at::IntArrayRef{11, 64}));
  EXPECT_EQ(model->hidden_states(chunks, &cache).sizes(), (at::IntArrayRef{11, 64}));
  EXPECT_EQ(model->hidden_states(chunks).sizes(), (at::IntArrayRef{11, 64}));
  EXPECT_EQ(runtime.waits, 0);
}
TEST(StepDecoder, NothingIsReadBackAndNoShapeDependsOnAValue) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_nothing_read_back(dtype, std::nullopt);
  }
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    expect_nothing_read_back(dtype, FfnPath::sparse);
    expect_nothing_read_back(dtype, FfnPath::automatic);
  }
}

// Compared with the clock around it alone, so that it holds however slow the machine is.
TEST(SecondsOf, IsTheTimeOfOneCallRecordedOrNot) {
  using Clock = std::chrono::steady_clock;
  for (const bool recorded : {false, true}) {
    int calls = 0;
    const auto begin = Clock::now();
    const double seconds = seconds_of(runtime_of(at::kCPU), recorded, [&calls] {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
    // Two calls as they are, two runs to see how long one takes, three timed ones.
    const int calls_of_run = recorded ? 8 : 1;
    const int timed = calls - 2 - 2 * calls_of_run;
    EXPECT_GT(timed, 0);
    EXPECT_EQ(timed % (3 * calls_of_run), 0);
    EXPECT_GE(seconds, 1e-3);
    EXPECT_LE(seconds * timed, elapsed) << "the time of several calls";
  }
}

TEST(MeasuredCost, LayersOfOneShapeAreMeasuredOnce) {
  DeviceRuntime& cpu = runtime_of(at::kCPU);
  int calls = 0;
  const TimedLayer layer{at::randn({48, 16}), [&](const at::Tensor&) { ++calls; },
                         [&](const at::Tensor&, float, std::int64_t) { ++calls; }};
  const FfnShape shape{16, 48, true, DType::f32};
  const CostModel cost = measured_cost(cpu, shape, layer);
  ASSERT_EQ(cost.dense.size(), cost.tokens.size());
  ASSERT_EQ(cost.sparse.size(), cost.tokens.size());
  EXPECT_EQ(cost.sparse[0].size(), cost.densities.size());
  const int once = calls;
  EXPECT_GT(once, 0);
  EXPECT_EQ(measured_cost(cpu, shape, layer).dense, cost.dense);
  EXPECT_EQ(calls, once);
  measured_cost(cpu, {16, 48, false, DType::f32}, layer);
  EXPECT_GT(calls, once);
}

// What measured_cost() asks for is what fires.
TEST(MeasuredCost, ThresholdsGiveTheDensities) {
  const at::Tensor gate = at::randn({4000, 16});
  std::vector<double> fired;
  const TimedLayer layer{gate, [](const at::Tensor&) {},
                         [&](const at::Tensor& x, float threshold, std::int64_t) {
                           const at::Tensor g = at::linear(x, gate).gt(threshold);
                           fired.push_back(g.to(at::kDouble).mean().item<double>());
                         }};
  const CostModel cost = measured_cost(runtime_of(at::kCPU), {16, 4000, true, DType::f32}, layer);
  for (const double share : fired) {
    const bool asked = std::any_of(cost.densities.begin(), cost.densities.end(),
                                   [&](double d) { return std::abs(share - d) <= 1.0 / 4000; });
    EXPECT_TRUE(asked) << share;
  }
}

// Where all neurons fire equally often a GPU multiplies none of them densely, or all.
TEST(MeasuredCost, TimesWhatTheDeviceWouldDo) {
  static SlowRuntime runtime;
  runtime.hot = [](const FfnShape& shape, std::int64_t, const std::vector<double>& rates) {
    EXPECT_EQ(rates, std::vector<double>(48, rates.front()));
    return HotChoice{rates.front() >= 0.1 ? shape.neurons : 0, 1.0};
  };
  std::map<std::int64_t, int> calls;
  const TimedLayer layer{at::randn({48, 16}), [](const at::Tensor&) {},
                         [&](const at::Tensor&, float, std::int64_t hot) { ++calls[hot]; }};
  measured_cost(runtime, {16, 48, true, DType::bf16}, layer);
  EXPECT_EQ(calls.size(), 2U);
  EXPECT_GT(calls[0], 0);
  EXPECT_GT(calls[48], 0);
}

TEST(SecondsOf, TimesNothingWhileAGraphIsRecorded) {
  SlowRuntime runtime;
  runtime.recording = true;
  try {
    seconds_of(runtime, false, [] { FAIL() << "called"; });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("a graph is being recorded"));
  }
  EXPECT_EQ(runtime.waits, 0);
}

// On tensors of no device that has data, the way of weights to a GPU.
TEST(SparseFeedForward, GateAndUpOfADeviceLieInOneMatrix) {
  static SlowRuntime runtime;
  runtime.recording = true;  // nothing is counted
  const auto matrix = [](std::int64_t rows, std::int64_t cols) {
    return at::empty({rows, cols}, at::TensorOptions(at::kBFloat16).device(at::kMeta));
  };
  const c10::InferenceMode inference;
  // Where packing pads nothing; else each lies alone.
  for (const auto& [width, neurons, joined] :
       {std::tuple{64, 176, true}, std::tuple{64, 170, false}, std::tuple{40, 176, false}}) {
    for (const FfnPath path : {FfnPath::sparse, FfnPath::automatic}) {
      const FfnParameters p{
          {}, matrix(neurons, width), matrix(neurons, width), matrix(width, neurons)};
      const auto layer =
          make_sparse_feed_forward(p, {io::HiddenAct::relu, 0.0F}, path, nullptr, runtime);
      const FfnCalls calls;
      layer->forward(matrix(3, width), 0, nullptr);
      ASSERT_EQ(calls.size(), 1U);
      const at::Tensor& gate = calls.last().gate;
      const at::Tensor& up = calls.last().up;
      EXPECT_EQ(up.is_alias_of(gate), joined);
      EXPECT_FALSE(up.is_alias_of(p.up));
      if (joined) {
        EXPECT_EQ(gate.storage_offset(), 0);
        EXPECT_EQ(up.storage_offset(), neurons * width);
        EXPECT_EQ(up.storage().nbytes(), 2U * 2U * neurons * width);
        EXPECT_EQ(up.stride(0), width);
      }
      // No more than the three matrices, padded.
      const std::int64_t padded = neurons * packed_extent(WeightType::bf16, neurons, width);
      EXPECT_EQ(layer->own_bytes(), 2 * (padded + 2 * neurons * width));
    }
  }
}

TEST(SparseFeedForward, IsTheSameLayerOnADevice) {
  static SlowRuntime device;
  const auto model = tiny_model(tiny_config(), at::kBFloat16);
  const c10::InferenceMode inference;
  const FfnParameters parameters = model->ffn_parameters(0);
  const auto on_device =
      make_sparse_feed_forward(parameters, model->activation(), FfnPath::sparse, nullptr, device);
  const auto on_cpu = make_sparse_feed_forward(parameters, model->activation());
  const at::Tensor x = at::randn({5, 64}).to(at::kBFloat16);  // too few for a screen
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(at::equal(on_device->forward(x, 0, nullptr), on_cpu->forward(x, 0, nullptr)));
  }
  EXPECT_THROW(make_sparse_feed_forward({{}, at::rand({8, 8}), at::rand({8, 8}), at::rand({8, 8})},
                                        model->activation(), FfnPath::sparse, nullptr, device),
               Error);
}

TEST(SparseFeedForward, FollowsTheDensityWithoutEverWaiting) {
  static SlowRuntime runtime;
  struct Path final : FfnObserver {
    void observe(const FfnActivity& activity) override { path = activity.path; }
    FfnPath path = FfnPath::automatic;
  } seen;
  const auto model = tiny_model(tiny_config(), at::kBFloat16);
  const c10::InferenceMode inference;
  const auto layer = make_sparse_feed_forward(model->ffn_parameters(0), model->activation(),
                                              FfnPath::automatic, nullptr, runtime);
  const at::Tensor half = at::randn({70, 64}).to(at::kBFloat16);  // of the neurons fire
  const auto path = [&](const at::Tensor& x) {
    (void)layer->forward(x, 0, &seen);
    return seen.path;
  };
  EXPECT_EQ(path(half), FfnPath::sparse) << "nothing is known";
  EXPECT_EQ(path(half), FfnPath::sparse) << "its count is on its way";
  runtime.done = true;
  EXPECT_EQ(path(half), FfnPath::dense);
  runtime.recording = true;
  EXPECT_EQ(path(half), FfnPath::dense);
  runtime.recording = false;
  EXPECT_EQ(path(at::zeros_like(half)), FfnPath::dense) << "sampled, the first after a recording";
  EXPECT_EQ(path(half), FfnPath::sparse);
  EXPECT_EQ(runtime.waits, 0);
}

TEST(OpenDevice, NamesAreChecked) {
  EXPECT_TRUE(open_device("cpu").is_cpu());
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1"}) {
    EXPECT_THROW((void)open_device(name), Error) << name;
  }
}

}  // namespace
}  // namespace twell::lm
