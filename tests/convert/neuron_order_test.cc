// Reordered checkpoints compute what the original ones do, and only what cannot matter is gone.
#include "convert/neuron_order.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <random>

#include "checkpoint/architecture.h"
#include "convert/trace_recorder.h"
#include "tests/decoder/tiny_model.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using test::ScratchDirectory;
using test::tiny_config;
using test::tiny_model;

std::vector<std::int64_t> random_tokens(std::int64_t count) {
  std::mt19937 random(5);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<std::int64_t>(random() % 211));
  return out;
}

void clear_row(const at::Tensor& rows, std::int64_t row) {
  const at::NoGradGuard no_grad;
  rows.select(0, row).zero_();
}

// Neurons without effect, of each kind, more in layer 1 than in the others.
std::unique_ptr<Model> model_with_dead_neurons(const io::ModelConfig& config) {
  auto model = tiny_model(config);
  for (std::int64_t l = 0; l < 3; ++l) {
    const FfnParameters p = model->ffn_parameters(l);
    clear_row(p.up, 3 + l);
    clear_row(p.down.t(), 40);
    if (p.gated()) clear_row(p.gate, 170);
    if (l == 1) clear_row(p.up, 100);
  }
  return model;
}

TEST(NeuronOrder, FindsExactlyTheNeuronsWithoutEffect) {
  for (const bool gated : {true, false}) {
    auto config = tiny_config();
    config.gated = gated;
    const auto model = model_with_dead_neurons(config);
    std::vector<std::int64_t> expected = {4, 40, 100};
    if (gated) expected.push_back(170);
    EXPECT_EQ(neurons_without_effect(model->ffn_parameters(1), model->activation()), expected);
  }
}

TEST(NeuronOrder, ABiasKeepsANeuronAlive) {
  const at::Tensor zero = at::zeros({4, 8});
  FfnParameters p{{}, zero, at::randn({4, 8}), at::randn({8, 4})};
  const ActivationChoice relu{io::HiddenAct::relu, 0.0F};
  EXPECT_EQ(neurons_without_effect(p, relu).size(), 4U);
  p.gate_bias = at::tensor({-1.0F, 0.0F, 0.5F, 1.0F});
  EXPECT_EQ(neurons_without_effect(p, relu), (std::vector<std::int64_t>{0, 1}));
  p.gate = at::randn({4, 8});
  p.up = zero;
  EXPECT_EQ(neurons_without_effect(p, relu).size(), 4U);
  p.up_bias = at::tensor({0.0F, 2.0F, 0.0F, 0.0F});
  EXPECT_EQ(neurons_without_effect(p, relu), (std::vector<std::int64_t>{0, 2, 3}));
}

TEST(NeuronOrder, AnActivationOfUpSilencesABias) {
  FfnParameters p{{}, at::randn({4, 8}), at::zeros({4, 8}), at::randn({8, 4})};
  p.up_bias = at::tensor({0.0F, 2.0F, -1.0F, 0.0F});
  EXPECT_EQ(neurons_without_effect(p, {io::HiddenAct::relu, 0.0F, Activation::relu}),
            (std::vector<std::int64_t>{0, 2, 3}));
}

// A norm divides by the root of a mean over all neurons, those that are zero too.
TEST(NeuronOrder, UnderANormEveryNeuronCounts) {
  auto config = tiny_config();
  for (const io::Architecture* one : io::architectures()) {
    if (std::string_view(one->name) == "bitnet") config.architecture = one;
  }
  config.block = config.architecture->block;
  const auto model = model_with_dead_neurons(config);
  const auto orders = order_neurons(*model, random_tokens(300), /*remove=*/true);
  const ScratchDirectory directory;
  NamedTensors tensors = reordered(*model, orders);
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().contiguous();
  test::save_model(directory.path(), config, tensors);
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = at::tensor(random_tokens(60)).view({1, 60});
  const at::Tensor expected = model->forward(tokens);
  for (const FfnPath path : {FfnPath::dense, FfnPath::sparse}) {
    const auto loaded = load_model(directory.string(), {.path = path});
    EXPECT_LE(test::largest_difference(loaded->forward(tokens), expected),
              test::fp32_bound(config, 60, expected));
  }
}

TEST(NeuronOrder, TheReorderedModelComputesTheSame) {
  for (const bool gated : {true, false}) {
    for (const bool remove : {true, false}) {
      auto config = tiny_config();
      config.gated = gated;
      const auto model = model_with_dead_neurons(config);
      const auto orders = order_neurons(*model, random_tokens(300), remove);
      ASSERT_EQ(orders.size(), 3U);
      // Layers 0 and 2 have this many; layer 1 keeps what it has more.
      const std::int64_t removed = remove ? (gated ? 3 : 2) : 0;
      for (const LayerOrder& order : orders) {
        EXPECT_EQ(order.removed, removed);
        EXPECT_EQ(static_cast<std::int64_t>(order.neurons.size()), 176 - removed);
        auto sorted = order.neurons;
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(std::unique(sorted.begin(), sorted.end()), sorted.end());
        EXPECT_GE(sorted.front(), 0);
        EXPECT_LT(sorted.back(), 176);
        EXPECT_NE(order.neurons, sorted);
      }
      const ScratchDirectory directory;
      config.intermediate_size = 176 - removed;
      NamedTensors tensors = reordered(*model, orders);
      for (auto& [name, tensor] : tensors) tensor = tensor.detach().contiguous();
      test::save_model(directory.path(), config, tensors);
      for (const FfnPath path : {FfnPath::dense, FfnPath::sparse}) {
        const auto loaded = load_model(directory.string(), {.path = path});
        const at::NoGradGuard no_grad;
        const at::Tensor tokens = at::tensor(random_tokens(60)).view({1, 60});
        const at::Tensor expected = model->forward(tokens);
        EXPECT_LE(test::largest_difference(loaded->forward(tokens), expected),
                  test::fp32_bound(config, 60, expected));
      }
    }
  }
}

// Neurons that always fire together, scattered: they end up in blocks of their own.
TEST(NeuronOrder, NeuronsThatFireTogetherLieTogether) {
  auto config = tiny_config();
  const auto model = tiny_model(config);
  {
    // Neuron n is a copy of neuron n % 11 in what it listens to: 11 groups of 16.
    const at::NoGradGuard no_grad;
    for (std::int64_t l = 0; l < 3; ++l) {
      const at::Tensor gate = model->ffn_parameters(l).gate;
      gate.copy_(gate.narrow(0, 0, 11).repeat({16, 1}));
    }
  }
  for (const LayerOrder& order : order_neurons(*model, random_tokens(300), true)) {
    const std::size_t live = order.neurons.size() - static_cast<std::size_t>(order.silent);
    for (std::size_t i = 0; i < live; ++i) {
      EXPECT_EQ(order.neurons[i] % 11, order.neurons[i / 16 * 16] % 11) << i;
    }
    // Before, nearly every block had a neuron of each group; after, a block is one group.
    EXPECT_GT(order.blocks_before, 10.0);
    EXPECT_LT(order.blocks_after, order.blocks_before);
  }
}

TEST(NeuronOrder, ActivationsWithoutZerosAreRefused) {
  auto config = tiny_config();
  config.hidden_act = io::HiddenAct::silu;
  const auto model = tiny_model(config);
  EXPECT_THROW(order_neurons(*model, random_tokens(20), true), Error);
}

// What the recorder writes is what the dense definition says.
TEST(TraceRecorder, RecordsTheNonZerosOfTheGate) {
  const auto model = tiny_model(tiny_config());
  const at::NoGradGuard no_grad;
  const auto tokens = random_tokens(40);
  TraceRecorder recorder(*model, 40);
  const Chunk chunk{0, tokens};
  model->hidden_states({&chunk, 1}, nullptr, &recorder);
  const ScratchDirectory directory;
  recorder.trace().save(directory.path() / "t");
  const io::ActivityTrace trace(directory.path() / "t");
  EXPECT_EQ(trace.header().tokens, 40U);
  // Layer 0 by hand, from the embedding on.
  struct Watch final : FfnObserver {
    bool wants_hidden() const override { return true; }
    void observe(const FfnActivity& activity) override { gates.push_back(activity.gate.clone()); }
    std::vector<at::Tensor> gates;
  } watch;
  model->hidden_states({&chunk, 1}, nullptr, &watch);
  for (std::uint32_t l = 0; l < 3; ++l) {
    at::Tensor fired = at::zeros({40, 176}, at::kBool);
    const io::ActivityRows rows = trace.read(l);
    for (std::size_t t = 0; t < 40; ++t) {
      for (const std::uint32_t n : rows.row(t)) {
        fired[static_cast<std::int64_t>(t)][static_cast<std::int64_t>(n)] = true;
      }
    }
    EXPECT_TRUE(at::equal(fired, watch.gates[l] > 0));
  }
}

}  // namespace
}  // namespace twell::lm
