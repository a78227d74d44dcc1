// A sparse layer's screen of its gate for few rows, on a device that plays a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <utility>

#include "decoder/feed_forward.h"
#include "decoder/sparse_operators.h"
#include "device/device.h"
#include "tests/decoder/exact_layer.h"
#include "tests/decoder/operator_calls.h"
#include "tests/support/slow_runtime.h"
#include "twell/screen.h"

namespace twell::lm {
namespace {

using test::expect_within_bound;
using test::FfnCalls;
using test::Layer;
using test::make_layer;
using test::SlowRuntime;

constexpr std::int64_t kPrompt = kTokensToOrder;
constexpr std::int64_t kHot = 24;

// Inputs that share a direction, along which the layer's rows lie below zero: some neurons in a
// hundred fire.
at::Tensor skewed_inputs(std::int64_t rows, std::int64_t width) {
  at::Tensor x = at::randn({rows, width});
  x.select(1, 0).fill_(8);
  return x.to(at::kBFloat16);
}
Layer silent_layer(bool gated, std::int64_t width, std::int64_t neurons) {
  Layer layer = make_layer({io::HiddenAct::relu, gated, at::kBFloat16}, width, neurons);
  (gated ? layer.parameters.gate : layer.parameters.up).select(1, 0).fill_(-0.25);
  return layer;
}

// A layer on a device whose counts arrive at once, where kHot neurons are hot from 64 rows on and
// plans take a screen for up to four rows.
std::unique_ptr<FeedForward> screened_layer(const Layer& layer, SlowRuntime& runtime,
                                            FfnPath path = FfnPath::sparse) {
  runtime.done = true;
  runtime.hot = [](const FfnShape&, std::int64_t rows, const std::vector<double>&) {
    return HotChoice{rows >= 64 ? kHot : 0, 1.0};
  };
  runtime.screens = {0.3, 0.3, 0.3, 0.3};
  return make_sparse_feed_forward(layer.parameters, layer.activation, path, nullptr, runtime);
}
void run_prompt(FeedForward& ffn) { ffn.forward(skewed_inputs(kPrompt, 64), 0, nullptr); }

TEST(ScreenedLayers, FewRowsGoThroughAScreenOnceNeuronsAreOrdered) {
  const at::NoGradGuard no_grad;
  for (const FfnPath path : {FfnPath::sparse, FfnPath::automatic}) {
    for (const bool gated : {true, false}) {
      for (const auto& [width, neurons] : {std::pair{64, 176}, std::pair{40, 93}}) {
        SCOPED_TRACE(testing::Message() << name_of(path) << " " << gated << " " << neurons);
        SlowRuntime runtime;
        const Layer layer = silent_layer(gated, width, neurons);
        const auto ffn = screened_layer(layer, runtime, path);
        runtime.done = false;
        const std::int64_t bytes = ffn->own_bytes();
        const at::Tensor prompt = skewed_inputs(kPrompt, width);
        const at::Tensor few = skewed_inputs(4, width);
        const FfnCalls calls;
        const auto run = [&](const at::Tensor& x) {
          expect_within_bound(ffn->forward(x, 0, nullptr), layer, x);
        };
        run(prompt);
        run(few);
        EXPECT_EQ(calls.size(), 2U) << "counts are on their way: no order, no screen";
        runtime.done = true;
        run(few);  // made and judged; the judge's calls are the 64 first rows of the prompt
        EXPECT_EQ(calls.size(), 2U + 64 / 4 + 1);
        // Played by a device whose counts arrive at once, so that this call has it already.
        EXPECT_EQ(calls.last().screen.defined(), true);
        EXPECT_TRUE(at::equal(calls.last().x, few));
        // The screen is of the rows where they lie now, and the gate is those rows.
        const at::Tensor& first = gated ? layer.parameters.gate : layer.parameters.up;
        EXPECT_TRUE(at::equal(std::get<0>(at::sort(calls.last().gate.to(at::kFloat).sum(1))),
                              std::get<0>(at::sort(first.to(at::kFloat).sum(1)))));
        const at::Tensor axis = prompt.to(at::kFloat).sum(0);
        EXPECT_TRUE(at::equal(calls.last().screen, screen_weight(calls.last().gate, axis)));
        EXPECT_EQ(ffn->own_bytes() - bytes, calls.last().screen.numel());
        EXPECT_THAT(ffn->describe(4), testing::AllOf(testing::HasSubstr(", screened;"),
                                                     testing::HasSubstr("up to 4 tokens left")));
        run(skewed_inputs(5, width));
        EXPECT_FALSE(calls.last().screen.defined()) << "no plan takes it";
        EXPECT_EQ(ffn->describe(5).find(", screened;"), std::string::npos);
        run(prompt);
        EXPECT_FALSE(calls.last().screen.defined());
        EXPECT_EQ(runtime.waits, 0);
      }
    }
  }
}

TEST(ScreenedLayers, NoCallHasHotNeuronsAndAScreen) {
  const at::NoGradGuard no_grad;
  SlowRuntime runtime;
  const Layer layer = silent_layer(true, 64, 176);
  const auto ffn = screened_layer(layer, runtime);
  runtime.hot = [](const FfnShape&, std::int64_t rows, const std::vector<double>&) {
    return HotChoice{rows >= 4 ? kHot : 0, 1.0};
  };
  const FfnCalls calls;
  run_prompt(*ffn);
  for (const std::int64_t rows : {1, 4, 1}) {
    ffn->forward(skewed_inputs(rows, 64), 0, nullptr);
    EXPECT_EQ(calls.last().screen.defined(), rows == 1);
    EXPECT_EQ(calls.last().hot, rows == 1 ? 0 : kHot);
    EXPECT_EQ(ffn->describe(rows).find(", screened;") != std::string::npos, rows == 1);
  }
}

TEST(ScreenedLayers, AScreenThatLeavesTooManyIsGivenUp) {
  const at::NoGradGuard no_grad;
  SlowRuntime runtime;
  const Layer layer = make_layer({io::HiddenAct::relu, true, at::kBFloat16}, 64, 176);
  const auto ffn = screened_layer(layer, runtime);
  const std::int64_t bytes = ffn->own_bytes();
  const FfnCalls calls;
  ffn->forward(at::randn({kPrompt, 64}).to(at::kBFloat16), 0, nullptr);  // half of them fire
  for (int call = 0; call < 2; ++call) {
    const at::Tensor x = at::randn({2, 64}).to(at::kBFloat16);
    expect_within_bound(ffn->forward(x, 0, nullptr), layer, x);
    EXPECT_FALSE(calls.last().screen.defined());
  }
  EXPECT_EQ(ffn->own_bytes(), bytes);
  EXPECT_THAT(ffn->describe(1), testing::HasSubstr("no screen, it left "));
}

// On a fixed path the bits of a call do not depend on the calls before it; `auto` follows them.
TEST(ScreenedLayers, OnlyAutomaticFollowsTheCandidatesOfItsCalls) {
  const at::NoGradGuard no_grad;
  for (const FfnPath path : {FfnPath::sparse, FfnPath::automatic}) {
    SlowRuntime runtime;
    const Layer layer = silent_layer(true, 64, 176);
    layer.parameters.gate.select(1, 1).fill_(0);
    const auto ffn = screened_layer(layer, runtime, path);
    run_prompt(*ffn);
    ffn->forward(skewed_inputs(1, 64), 0, nullptr);
    const std::int64_t bytes = ffn->own_bytes();
    // No more fire, but rounding a channel that no neuron reads leaves nearly all of them.
    at::Tensor loud = skewed_inputs(4, 64);
    loud.select(1, 1).fill_(1e4);
    const FfnCalls calls;
    int few = 0, screened = 0;
    constexpr int kCalls = 240;
    for (int call = 0; call < kCalls; ++call) {
      // Every third has too many rows for a screen, and says nothing of it.
      const bool many = call % 3 == 0;
      ffn->forward(many ? skewed_inputs(64, 64) : loud, 0, nullptr);
      few += static_cast<int>(!many);
      screened += static_cast<int>(calls.last().screen.defined());
    }
    EXPECT_EQ(calls.size(), std::size_t{kCalls}) << "the sparse path throughout";
    EXPECT_GT(screened, 16) << "one call of sixteen is counted";
    EXPECT_EQ(screened == few, path == FfnPath::sparse);
    EXPECT_EQ(calls.last().screen.defined(), path == FfnPath::sparse);
    EXPECT_EQ(ffn->own_bytes() == bytes, path == FfnPath::sparse) << "its memory is given back";
    EXPECT_EQ(ffn->describe(1).find("no screen, it left") == std::string::npos,
              path == FfnPath::sparse);
    EXPECT_EQ(runtime.waits, 0);
  }
}

TEST(ScreenedLayers, RecordingsGoOnWithWhatTheyWereMadeWith) {
  const at::NoGradGuard no_grad;
  SlowRuntime runtime;
  const Layer layer = silent_layer(true, 64, 176);
  const auto ffn = screened_layer(layer, runtime);
  const at::Tensor x = skewed_inputs(3, 64);
  const FfnCalls calls;
  const auto record = [&] {
    runtime.recording = true;
    ffn->forward(x, 0, nullptr);
    runtime.recording = false;
    return calls.last();
  };
  const auto replay = [&](const FfnCalls::Call& call) {
    expect_within_bound(sparse_ffn(x, {call.gate, call.up, call.down, call.screen, call.hot},
                                   {Activation::relu, 0}),
                        layer, x);
  };
  run_prompt(*ffn);
  const FfnCalls::Call before = record();
  EXPECT_FALSE(before.screen.defined()) << "nothing is made while a graph is recorded";
  ffn->forward(x, 0, nullptr);
  const FfnCalls::Call after = record();
  EXPECT_TRUE(after.screen.defined());
  replay(before);
  replay(after);
}

// Refuses so many bytes.
struct Scarce final : c10::Allocator {
  explicit Scarce(std::size_t bytes) : refused(bytes), others(c10::GetAllocator(at::kCPU)) {
    c10::SetAllocator(at::kCPU, this, 1);
  }
  ~Scarce() override { c10::SetAllocator(at::kCPU, others, 1); }
  Scarce(const Scarce&) = delete;
  Scarce& operator=(const Scarce&) = delete;
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes != refused) return others->allocate(bytes);
    ++times;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory");
  }
  c10::DeleterFnPtr raw_deleter() const override { return others->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    others->copy_data(to, from, bytes);
  }
  std::size_t refused;
  c10::Allocator* others;
  int times = 0;
};

TEST(ScreenedLayers, WithoutMemoryTheLayerGoesOnWithout) {
  const at::NoGradGuard no_grad;
  SlowRuntime runtime;
  const Layer layer = silent_layer(true, 64, 176);
  const auto ffn = screened_layer(layer, runtime);
  run_prompt(*ffn);
  const at::Tensor x = skewed_inputs(3, 64);
  const FfnCalls calls;
  const Scarce scarce(screen_bytes(176, 64));
  for (int call = 0; call < 2; ++call) {
    expect_within_bound(ffn->forward(x, 0, nullptr), layer, x);
    EXPECT_FALSE(calls.last().screen.defined());
  }
  EXPECT_EQ(scarce.times, 1);
  EXPECT_THAT(ffn->describe(1), testing::AllOf(testing::HasSubstr("neurons ordered by"),
                                               testing::HasSubstr("no memory for a screen")));
}

}  // namespace
}  // namespace twell::lm
