// Decoding by steps with static buffers, as a GPU records them: the same tokens as chunk by chunk.
#include <ATen/ExpandUtils.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <thread>

#include "engine/device_sampler.h"
#include "engine/generate.h"
#include "engine/step_decoder.h"
#include "models/ffn_device.h"
#include "models/path_choice.h"
#include "tests/models/tiny_model.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

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

TEST(StepDecoder, DrawsAreThoseOfTheSampler) {
  const auto model = tiny_model(tiny_config());
  for (const std::int64_t top_k : {0, 12}) {
    GenerateOptions options{.max_tokens = 25, .stop_tokens = Tokens{}};
    options.sampling = {.temperature = 1.3, .top_k = top_k, .seed = 5};
    expect_same_text(*model, options);
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
at::Tensor index_select(const at::Tensor& x, std::int64_t, const at::Tensor& rows) {
  return at::empty({rows.size(0), x.size(1)}, x.options());
}
TORCH_LIBRARY_IMPL(aten, Meta, m) {
  m.impl("relu", &relu);
  m.impl("index_select", &index_select);
  m.impl("where.self", &where);
  m.impl("where.self_out", &where_out);
}

// Shapes of torch.ops.twell, which C++ has kernels for where there is data.
at::Tensor pack_weight(const at::Tensor& w) {
  return at::empty({(w.size(0) + 15) / 16, (w.size(1) + 31) / 32 * 16, 16, 2}, w.options());
}
at::Tensor gated_ffn(const at::Tensor& x, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                     c10::string_view, double) {
  return at::empty_like(x);
}
TORCH_LIBRARY_IMPL(twell, Meta, m) {
  m.impl("pack_weight", &pack_weight);
  m.impl("gated_ffn", &gated_ffn);
}

// A device whose work is done when the test says so.
class SlowRuntime final : public DeviceRuntime {
 public:
  struct Mark final : Marker {
    explicit Mark(const bool& d) : done(d) {}
    void set() override {}
    bool reached() override { return done; }
    const bool& done;
  };
  std::string describe() const override { return "slow"; }
  void synchronize() override {
    ++waits;
    done = true;
  }
  std::unique_ptr<StepGraph> make_graph() override { return nullptr; }
  std::unique_ptr<Marker> make_marker() override { return std::make_unique<Mark>(done); }
  bool capturing() const override { return recording; }
  at::Tensor host_buffer(std::int64_t n, at::ScalarType dtype) override {
    return at::zeros({n}, at::TensorOptions(dtype));
  }
  std::int64_t peak_bytes() override { return 0; }
  void reset_peak_bytes() override {}
  std::string uuid() const override { return {}; }
  double sparse_to_dense(const LayerShape&, std::int64_t, double density) const override {
    return 4 * density;
  }
  std::string explain_ffn(const LayerShape&, std::int64_t) const override { return {}; }

  bool done = false, recording = false;
  int waits = 0;
};

// Tensors without data: whatever asks for a value, or touches memory from the host, fails.
void expect_nothing_read_back(at::ScalarType dtype, std::optional<FfnPath> path) {
  // Counts, which do go to the host, are not taken while recording.
  static SlowRuntime runtime;
  runtime.recording = true;
  const auto model = make_model(tiny_config(), dtype, 1, at::kMeta);
  const c10::InferenceMode inference;
  for (std::int64_t layer = 0; path && layer < model->layers(); ++layer) {
    model->set_feed_forward(layer, make_device_feed_forward(model->ffn_parameters(layer),
                                                            model->activation(), *path, runtime));
  }
  KvCache cache = model->make_cache(3, 20);
  EXPECT_TRUE(cache.fixed());
  const auto ids = at::zeros({3}, at::TensorOptions(at::kLong).device(at::kMeta));
  const at::Tensor hidden = model->step(ids, ids, cache);
  EXPECT_EQ(hidden.sizes(), (at::IntArrayRef{3, 64}));
  const at::Tensor logits = model->head(hidden).to(at::kFloat);
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1.0},
        SamplingOptions{.temperature = 0.7, .top_k = 9, .top_p = 0.9}}) {
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

TEST(SampleRows, EveryTokenHasItsShareOfTheDraws) {
  const at::Tensor logits =
      at::log(at::tensor({0.05, 0.3, 0.2, 0.4, 0.05}, at::kFloat)).unsqueeze(0);
  constexpr int kDraws = 1000;
  const at::Tensor uniforms = (at::arange(kDraws, at::kDouble) + 0.5) / kDraws;
  const auto shares = [&](const SamplingOptions& options) {
    return at::bincount(sample_rows(logits.expand({kDraws, 5}), options, uniforms), {}, 5)
               .to(at::kDouble) /
           kDraws;
  };
  const auto expect = [&](const SamplingOptions& options, std::initializer_list<double> wanted) {
    const at::Tensor got = shares(options);
    // One draw more or less at either end of a token's interval.
    EXPECT_LE((got - at::tensor(wanted, at::kDouble)).abs().max().item<double>(), 2.0 / kDraws)
        << got;
  };
  expect({.temperature = 1.0}, {0.05, 0.3, 0.2, 0.4, 0.05});
  expect({.temperature = 1.0, .top_k = 2}, {0, 3.0 / 7, 0, 4.0 / 7, 0});
  expect({.temperature = 1.0, .top_p = 0.75}, {0, 3.0 / 9, 2.0 / 9, 4.0 / 9, 0});
  expect({.temperature = 1.0, .top_k = 3, .top_p = 0.5}, {0, 3.0 / 7, 0, 4.0 / 7, 0});
  expect({.temperature = 0.0}, {0, 0, 0, 1, 0});
}

TEST(SampleRows, ExtremesAndBrokenLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor logits =
      at::tensor({-inf, 1.0F, 1.0F, -inf, 5.0F, 0.0F, std::nanf(""), 0.0F, 1.0F, inf, 0.0F, 0.0F})
          .view({3, 4});
  for (const double u : {0.0, std::nextafter(1.0, 0.0)}) {
    for (const double temperature : {0.0, 1.0}) {
      const at::Tensor ids =
          sample_rows(logits, {.temperature = temperature}, at::full({3}, u, at::kDouble));
      EXPECT_EQ(ids[0].item<std::int64_t>(), temperature > 0 && u > 0.5 ? 2 : 1);
      EXPECT_EQ(ids[1].item<std::int64_t>(), -1);
      EXPECT_EQ(ids[2].item<std::int64_t>(), -1);
    }
  }
}

TEST(DensityProbe, IsReadWhenItHasArrivedAndNeverWaitedFor) {
  SlowRuntime runtime;
  DensityProbe probe(runtime);
  EXPECT_EQ(probe.density(), std::nullopt);
  probe.record(at::scalar_tensor(30, at::kLong), 100);
  EXPECT_EQ(probe.density(), std::nullopt) << "not there yet";
  probe.record(at::scalar_tensor(80, at::kLong), 100);  // passed over: one is on its way
  runtime.done = true;
  runtime.recording = true;
  EXPECT_EQ(probe.density(), std::nullopt) << "events are not asked while recording";
  runtime.recording = false;
  EXPECT_EQ(probe.density(), 0.3);
  runtime.recording = true;
  probe.record(at::scalar_tensor(90, at::kLong), 100);
  runtime.recording = false;
  EXPECT_EQ(probe.density(), 0.3) << "nothing is counted while recording";
  EXPECT_EQ(runtime.waits, 0);
}

TEST(PathChoice, EstimatesAreCorrectedByMeasurements) {
  const SlowRuntime runtime;
  PathChoice choice(runtime, {});
  EXPECT_DOUBLE_EQ(choice.ratio(10, 0.5), 2.0);
  choice.correct(4, 0.5, 1.0, 1.0);    // estimated 2, measured 1
  choice.correct(64, 0.5, 16.0, 1.0);  // estimated 2, measured 16
  EXPECT_DOUBLE_EQ(choice.ratio(4, 0.5), 1.0);
  EXPECT_DOUBLE_EQ(choice.ratio(1, 0.5), 1.0) << "below what was measured: the nearest";
  EXPECT_DOUBLE_EQ(choice.ratio(16, 0.5), 4.0) << "half way between: 2 · √(½ · 8)";
  EXPECT_DOUBLE_EQ(choice.ratio(64, 0.25), 8.0) << "other densities by the estimate";
  EXPECT_DOUBLE_EQ(choice.ratio(4096, 0.5), 16.0);
  choice.correct(64, 0.5, 0.0, 1.0);  // no time at all is no measurement
  EXPECT_DOUBLE_EQ(choice.ratio(64, 0.5), 16.0);
  choice.correct(4, 0.1, 1.0, 1.0);  // estimated 0.4, measured 1
  EXPECT_DOUBLE_EQ(choice.ratio(4, 0.1), 1.0);
  EXPECT_DOUBLE_EQ(choice.ratio(4, 0.05), 0.5);
  EXPECT_DOUBLE_EQ(choice.ratio(4, 0.5), 1.0) << "as before";
  EXPECT_NEAR(choice.ratio(4, 0.3), 1.2 * std::sqrt(0.5 * 2.5), 1e-12) << "half way between";
}

TEST(PathChoice, ThePathOfTheCallBeforeStaysAtNearlyEqualTimes) {
  const SlowRuntime runtime;
  const PathChoice choice(runtime, {});  // 4 · density
  EXPECT_FALSE(choice.dense_is_faster(10, 0.27, false));
  EXPECT_TRUE(choice.dense_is_faster(10, 0.28, false));
  EXPECT_TRUE(choice.dense_is_faster(10, 0.23, true));
  EXPECT_FALSE(choice.dense_is_faster(10, 0.22, true));
}

TEST(PathChoice, IsCalibratedOnce) {
  const SlowRuntime runtime;
  PathChoice choice(runtime, {});
  int times = 0;
  for (int i = 0; i < 3; ++i) choice.calibrate_once([&times] { ++times; });
  EXPECT_EQ(times, 1);
}

TEST(SecondsOf, IsTheTimeOfOneCallRecordedOrNot) {
  for (const bool recorded : {false, true}) {
    int calls = 0;
    const double seconds = seconds_of(runtime_of(at::kCPU), recorded, [&calls] {
      ++calls;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    EXPECT_GE(seconds, 1e-3);
    EXPECT_LT(seconds, 8e-3) << "less than a recording of eight calls takes";
    if (recorded) {
      EXPECT_EQ((calls - 2) % 8, 0) << "two calls as they are, then recordings";
    }
  }
}

TEST(PathChoice, IsSharedByLayersOfOneShape) {
  DeviceRuntime& cpu = runtime_of(at::kCPU);
  EXPECT_EQ(shared_choice(cpu, {64, 176}), shared_choice(cpu, {64, 176}));
  EXPECT_NE(shared_choice(cpu, {64, 176}), shared_choice(cpu, {64, 177}));
  EXPECT_NE(shared_choice(cpu, {64, 176, true}), shared_choice(cpu, {64, 176, false}));
}

TEST(DeviceFeedForward, IsTheSparseLayer) {
  const auto model = tiny_model(tiny_config(), at::kBFloat16);
  const c10::InferenceMode inference;
  const FfnParameters parameters = model->ffn_parameters(0);
  DeviceRuntime& runtime = runtime_of(at::kCPU);
  const auto device =
      make_device_feed_forward(parameters, model->activation(), FfnPath::sparse, runtime);
  const auto cpu = make_sparse_feed_forward(parameters, model->activation());
  const at::Tensor x = at::randn({5, 64}).to(at::kBFloat16);
  for (int call = 0; call < 3; ++call) {
    EXPECT_TRUE(at::equal(device->forward(x, 0, nullptr), cpu->forward(x, 0, nullptr)));
  }
  EXPECT_THROW(
      make_device_feed_forward({at::rand({8, 8}), at::rand({8, 8}), at::rand({8, 8}), {}, {}, {}},
                               model->activation(), FfnPath::sparse, runtime),
      Error);
}

TEST(DeviceFeedForward, CountsBeforeItsFirstChoiceAndNeverWaitsAgain) {
  static SlowRuntime runtime;  // the sparse path takes 4 · density of the dense one's time
  struct Path final : FfnObserver {
    void observe(const FfnActivity& activity) override { path = activity.path; }
    FfnPath path = FfnPath::automatic;
  } seen;
  const auto model = tiny_model(tiny_config(), at::kBFloat16);
  const c10::InferenceMode inference;
  const auto make = [&] {
    return make_device_feed_forward(model->ffn_parameters(0), model->activation(),
                                    FfnPath::automatic, runtime);
  };
  const at::Tensor half = at::randn({5, 64}).to(at::kBFloat16);  // of the neurons fire
  const at::Tensor none = at::zeros_like(half);
  const auto path = [&](FeedForward& layer, const at::Tensor& x) {
    (void)layer.forward(x, 0, &seen);
    return seen.path;
  };

  const auto layer = make();
  EXPECT_EQ(path(*layer, none), FfnPath::sparse);
  EXPECT_EQ(runtime.waits, 1);
  runtime.done = false;
  EXPECT_EQ(path(*layer, half), FfnPath::sparse) << "its count is on its way";
  EXPECT_EQ(path(*layer, half), FfnPath::sparse);
  runtime.done = true;
  EXPECT_EQ(path(*layer, half), FfnPath::dense);
  runtime.recording = true;
  EXPECT_EQ(path(*layer, half), FfnPath::dense);
  EXPECT_EQ(path(*make(), none), FfnPath::dense) << "nothing is known, and nothing can be counted";
  runtime.recording = false;
  EXPECT_EQ(runtime.waits, 1);
  EXPECT_EQ(path(*make(), half), FfnPath::dense);
  EXPECT_EQ(runtime.waits, 2);
}

TEST(OpenDevice, NamesAreChecked) {
  EXPECT_TRUE(open_device("cpu").is_cpu());
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1"}) {
    EXPECT_THROW((void)open_device(name), Error) << name;
  }
}

}  // namespace
}  // namespace twell::lm
