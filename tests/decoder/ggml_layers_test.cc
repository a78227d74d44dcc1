// Layers whose weights are in ggml's blocks, against their products one by one.
#include "decoder/ggml_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <random>

#include "decoder/cpu_context.h"
#include "decoder/sparse_operators.h"
#include "tests/support/message_of.h"
#include "twell/half.h"

namespace twell::lm {
namespace {

using test::message_of;

class NoSource final : public ParameterSource {
 public:
  at::Tensor take(const Parameter& parameter) override { return parameter.tensor; }
  std::string where(const Parameter& parameter) const override {
    return "file.gguf: tensor " + parameter.name;
  }
};

// Random codes; scales of either sign around 1/64.
Linear random_linear(GgmlFormat format, std::int64_t rows, std::int64_t cols, unsigned seed) {
  const GgmlTraits traits = traits_of(format);
  const std::int64_t row_bytes = cols / traits.numbers * traits.bytes;
  at::Tensor blocks = at::empty({rows, row_bytes}, at::TensorOptions(at::kByte));
  auto* const data = blocks.mutable_data_ptr<std::uint8_t>();
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < blocks.numel(); ++i) data[i] = static_cast<std::uint8_t>(random());
  for (std::int64_t at = 0; at < blocks.numel(); at += traits.bytes) {
    GgmlBlock block;
    take_block(format, data + at, &block);
    const float size = (1.0F + static_cast<float>(random() % 64) / 64) / 64;
    block.scale = half_of_float(random() % 2 == 0 ? size : -size);
    if (traits.minima) block.minimum = half_of_float(size / 4);
    put_block(format, block, data + at);
  }
  Linear out;
  out.weight = {.name = "w", .shape = {rows, cols}, .tensor = blocks, .format = format};
  return out;
}

GgmlWeight weight_of(const Linear& linear, GgmlInputs inputs) {
  const GgmlView blocks = ggml_view(*linear.weight.format, linear.weight.tensor);
  return {{blocks, GgmlOrder::outputs}, inputs};
}

struct Layer {
  FfnTensors tensors;
  std::optional<GgmlWeight> gate, up, down;
  ActivationChoice activation;

  at::Tensor hidden(const at::Tensor& x, at::Tensor* fired = nullptr) const {
    const at::Tensor u = ggml_linear(x, *up, tensors.up.bias.tensor);
    const at::Tensor g = activate(gate ? ggml_linear(x, *gate, {}) : u, activation);
    if (fired != nullptr) *fired = g.ne(0);
    return gate ? g * u : g;
  }
  at::Tensor y(const at::Tensor& x) const { return ggml_linear(hidden(x), *down, {}); }
};

Layer make_layer(GgmlFormat format, io::HiddenAct act, bool gated, GgmlInputs inputs,
                 double bias = 0) {
  constexpr std::int64_t kWidth = 256, kNeurons = 512;
  Layer out;
  out.activation = {act, 0};
  if (gated) {
    out.tensors.gate = random_linear(format, kNeurons, kWidth, 1);
    out.gate = weight_of(out.tensors.gate, inputs);
  }
  out.tensors.up = random_linear(format, kNeurons, kWidth, 2);
  if (bias != 0) out.tensors.up.bias.tensor = at::full({kNeurons}, bias);
  out.tensors.down = random_linear(format, kWidth, kNeurons, 3);
  out.up = weight_of(out.tensors.up, inputs);
  out.down = weight_of(out.tensors.down, inputs);
  return out;
}

void expect_close(const at::Tensor& got, const at::Tensor& expected) {
  // The same integers; f32 sums over at most 16 blocks in another order.
  const double bound = 32 * 0x1p-24 * 16 * expected.abs().max().item<double>();
  EXPECT_LE((got - expected).abs().max().item<double>(), bound);
}

struct Counting final : FfnObserver {
  bool wants_counts() const override { return true; }
  void observe(const FfnActivity& activity) override { seen = activity; }
  FfnActivity seen;
};

class GgmlLayers : public testing::TestWithParam<std::tuple<GgmlFormat, GgmlInputs>> {
 protected:
  static GgmlFormat format() { return std::get<0>(GetParam()); }
  static GgmlInputs arithmetic() { return std::get<1>(GetParam()); }
  static Layer layer_of(io::HiddenAct act, bool gated, double bias = 0) {
    return make_layer(format(), act, gated, arithmetic(), bias);
  }
  static std::unique_ptr<FeedForward> ffn_of(FfnTensors& tensors,
                                             const ActivationChoice& activation, FfnPath path) {
    NoSource source;
    return make_ggml_feed_forward(tensors, activation, path, arithmetic(), source);
  }
};

TEST_P(GgmlLayers, AreTheirProducts) {
  for (const auto& [act, gated] :
       {std::pair{io::HiddenAct::relu_squared, false}, std::pair{io::HiddenAct::relu, true},
        std::pair{io::HiddenAct::silu, true}}) {
    for (const FfnPath path : {FfnPath::dense, FfnPath::sparse, FfnPath::automatic}) {
      if (path == FfnPath::sparse && !io::yields_zeros(act)) continue;
      Layer layer = layer_of(act, gated);
      const auto ffn = ffn_of(layer.tensors, layer.activation, path);
      EXPECT_FALSE(layer.tensors.down.weight.tensor.defined());  // given up
      const bool sparse = io::yields_zeros(act) && path != FfnPath::dense;
      EXPECT_EQ(ffn->path(), sparse ? FfnPath::sparse : FfnPath::dense);
      for (const std::int64_t rows : {1, 5, 40}) {
        const at::Tensor x = at::randn({rows, 256});
        at::Tensor fired;
        layer.hidden(x, &fired);
        Counting counting;
        expect_close(ffn->forward(x, 3, &counting), layer.y(x));
        EXPECT_EQ(counting.seen.layer, 3);
        EXPECT_EQ(counting.seen.path, ffn->path());
        const FfnCounts counts = counts_of(fired.sum(1), fired.sum(0));
        EXPECT_EQ(counting.seen.counts.row_nnz, counts.row_nnz);
        EXPECT_EQ(counting.seen.counts.neuron_nnz, counts.neuron_nnz);
      }
      EXPECT_EQ(ffn->forward(at::empty({0, 256}), 0, nullptr).sizes(), (at::IntArrayRef{0, 256}));
    }
  }
}

TEST_P(GgmlLayers, AreNotSparseWhereDownIsNot) {
  Layer layer = layer_of(io::HiddenAct::relu, false);
  layer.tensors.down = {};
  layer.tensors.down.weight = {.name = "down", .tensor = at::randn({256, 512})};
  const auto make = [&](FfnPath path) {
    FfnTensors tensors;
    tensors.up = layer.tensors.up;
    tensors.down = layer.tensors.down;
    return ffn_of(tensors, layer.activation, path);
  };
  EXPECT_THAT(message_of([&] { make(FfnPath::sparse); }),
              testing::AllOf(testing::HasSubstr("tensor down"), testing::HasSubstr("--path auto")));
  EXPECT_EQ(make(FfnPath::automatic)->path(), FfnPath::dense);
  const at::Tensor x = at::randn({3, 256});
  const at::Tensor y = at::linear(layer.hidden(x), layer.tensors.down.weight.tensor);
  EXPECT_TRUE(at::allclose(make(FfnPath::automatic)->forward(x, 0, nullptr), y, 1e-4, 1e-2));
}

TEST_P(GgmlLayers, TurnDownAroundWhereMostNeuronsFire) {
  Layer layer = layer_of(io::HiddenAct::relu, false, 1e6);  // all fire
  const auto ffn = ffn_of(layer.tensors, layer.activation, FfnPath::automatic);
  const std::int64_t bytes = ffn->own_bytes();
  EXPECT_THAT(ffn->describe(1), testing::HasSubstr("down reads what fired"));
  const at::Tensor many = at::randn({64, 256}), one = at::randn({1, 256});
  expect_close(ffn->forward(many, 0, nullptr), layer.y(many));
  EXPECT_EQ(ffn->path(), FfnPath::sparse);  // until a few rows come
  expect_close(ffn->forward(one, 0, nullptr), layer.y(one));
  EXPECT_EQ(ffn->path(), FfnPath::dense);
  expect_close(ffn->forward(one, 0, nullptr), layer.y(one));
  EXPECT_THAT(ffn->describe(1), testing::HasSubstr("100.0 % fired"));
  const bool exact = ffn->describe(1).find("inputs exact") != std::string::npos;
  EXPECT_EQ(exact, arithmetic() == GgmlInputs::as_they_are);
  EXPECT_NEAR(static_cast<double>(ffn->own_bytes()), static_cast<double>(bytes), 0.2 * bytes);
}

TEST_P(GgmlLayers, LookRowsUp) {
  const Linear table = random_linear(format(), 9, 256, 4);
  const at::Tensor ids = at::tensor(std::vector<std::int64_t>{8, 0, 8, 3}).view({2, 2});
  const at::Tensor rows = ggml_look_up(table.weight, ids, at::kFloat);
  ASSERT_EQ(rows.sizes(), (at::IntArrayRef{2, 2, 256}));
  const GgmlView view = ggml_view(format(), table.weight.tensor);
  std::vector<float> all(static_cast<std::size_t>(view.rows * view.cols));
  dequantize(format(), view.blocks, std::ssize(all) / traits_of(format()).numbers, all.data());
  const at::Tensor whole = at::tensor(all).view({9, 256});
  EXPECT_TRUE(at::equal(rows, whole.index_select(0, ids.flatten()).view({2, 2, 256})));
}

TEST_P(GgmlLayers, NameTheTensorOfAScaleThatIsNotFinite) {
  Linear linear = random_linear(format(), 4, 256, 5);
  auto* const data = linear.weight.tensor.mutable_data_ptr<std::uint8_t>();
  GgmlBlock block;
  take_block(format(), data, &block);
  block.scale = half_of_float(std::numeric_limits<float>::infinity());
  put_block(format(), block, data);
  NoSource source;
  EXPECT_THAT(message_of([&] { linear.pack(source); }),
              testing::AllOf(testing::HasSubstr("file.gguf: tensor w"),
                             testing::HasSubstr("row 0 is not finite")));
}

INSTANTIATE_TEST_SUITE_P(
    Formats, GgmlLayers,
    testing::Combine(testing::Values(GgmlFormat::q4_0, GgmlFormat::q5_0, GgmlFormat::q8_0,
                                     GgmlFormat::q4_k, GgmlFormat::q5_k, GgmlFormat::q6_k),
                     testing::Values(GgmlInputs::rounded, GgmlInputs::as_they_are)),
    [](const auto& info) {
      const bool rounded = std::get<1>(info.param) == GgmlInputs::rounded;
      return std::string(name_of(std::get<0>(info.param))) + (rounded ? "" : "_f32");
    });

}  // namespace
}  // namespace twell::lm
