// Layers and linear layers of int8 weights on every tier, against the fp64 definition on the
// numbers that the codes stand for.
#include <numeric>

#include "kernels/kernel.h"
#include "tests/ops/ffn_fixture.h"
#include "tests/support/message_of.h"
#include "twell/layer.h"
#include "twell/linear.h"
#include "twell/train.h"
#include "twell/transpose.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

template <class T>
using CodedLayer = test::Layer<T, std::int8_t>;

template <class T>
class CodesTest : public testing::Test {
 protected:
  template <class F>
  static void on_every_tier(int threads, F f) {
    for (CpuTier tier : available_cpu_tiers()) {
      Context context({.threads = threads, .tier = tier});
      f(context);
    }
  }
};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(CodesTest, Types);

TYPED_TEST(CodesTest, TailSizes) {
  this->on_every_tier(2, [](Context& context) {
    // Below and above the rows that multiply codes as they come, on every tier.
    for (std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 13, 17, 33, 63}) {
      CodedLayer<TypeParam> layer({tokens, 40, 70});
      check_layer(context, layer, 16, 4);
    }
    // Blocks of codes are 256 inputs, their steps 4, and x has 32 at a time.
    for (std::int64_t depth : {1, 2, 3, 4, 5, 31, 33, 63, 64, 100, 255, 256, 257, 300, 520}) {
      for (std::int64_t tokens : {1, 9}) {
        CodedLayer<TypeParam> layer({tokens, depth, 48});
        check_layer(context, layer, 32, 3);
      }
    }
    for (std::int64_t neurons : {1, 15, 16, 17, 31, 33, 64, 255, 257, 513, 600}) {
      CodedLayer<TypeParam> layer({18, 48, neurons});
      check_layer(context, layer);
    }
  });
}

TYPED_TEST(CodesTest, EveryActivationAndDensity) {
  this->on_every_tier(2, [](Context& context) {
    for (Activation kind : {Activation::relu, Activation::relu_squared, Activation::fat_relu}) {
      for (bool gated : {true, false}) {
        CodedLayer<TypeParam> layer({37, 96, 300, gated, {kind, 0.25F}, 1.0F});
        check_layer(context, layer);
      }
    }
    for (float shift : {20.0F, 3.0F, 1.0F, 0.0F, -20.0F}) {
      CodedLayer<TypeParam> layer({21, 64, 200, true, {}, shift});
      check_layer(context, layer, 64, 16);
    }
  });
}

TYPED_TEST(CodesTest, MoreRowsThanABlockAndMoreThreadsThanTiles) {
  for (const int threads : {5, 16}) {
    this->on_every_tier(threads, [](Context& context) {
      for (std::int64_t tokens : {1, 4, 193, 1100}) {
        CodedLayer<TypeParam> layer({tokens, 64, 272});
        check_layer(context, layer);
      }
    });
  }
}

TYPED_TEST(CodesTest, AdversarialPatternsOnEveryPath) {
  for (Pattern pattern : kAllPatterns) {
    for (const auto& [tokens, gated] : {std::pair{20, true}, {65, false}, {130, true}}) {
      const auto wanted = activation_matrix<TypeParam>(pattern, tokens, 290, 4);
      std::int64_t nnz = 0;
      auto layer = layer_that_fires<TypeParam, std::int8_t>(
          tokens, 290, gated,
          [&](std::int64_t r, std::int64_t n) { return wanted.value(r, n) != 0.0; });
      for (std::int64_t r = 0; r < tokens; ++r) {
        for (std::int64_t n = 0; n < 290; ++n) nnz += wanted.value(r, n) != 0.0;
      }
      check_every_path(layer, nnz);
    }
  }
}

TYPED_TEST(CodesTest, HotNeuronsAmongColdOnes) {
  this->on_every_tier(2, [](Context& context) {
    for (std::int64_t tokens : {15, 65, 193, 1100}) {
      for (bool gated : {true, false}) {
        CodedLayer<TypeParam> layer({tokens, 70, 290, gated, {}, 2.5F});
        for (std::int64_t n = 0; n < 290; n += 3) layer.gate.set(n, 0, n % 2 == 0 ? 8.0F : 0.0F);
        check_layer(context, layer);
      }
    }
  });
}

// Rows gathered in pieces of columns, with and without hot neurons.
TYPED_TEST(CodesTest, ManyRowsAreGathered) {
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const std::optional<double> hot_share : {std::optional<double>(), std::optional(2.0)}) {
      Context context({.threads = 2, .tier = tier, .hot_share = hot_share});
      for (const float shift : {1.5F, -30.0F}) {
        for (const bool gated : {true, false}) {
          CodedLayer<TypeParam> layer({300, 290, 400, gated, {}, shift});
          check_layer(context, layer);
        }
      }
    }
  }
}

// What is not finite comes from x alone.
TYPED_TEST(CodesTest, NanAndInfinityPassThrough) {
  this->on_every_tier(2, [](Context& context) {
    for (std::int64_t tokens : {3, 40}) {
      CodedLayer<TypeParam> layer({tokens, 45, 83});
      layer.x.set(0, 5, std::numeric_limits<float>::quiet_NaN());
      layer.x.set(1, 5, std::numeric_limits<float>::infinity());
      check_layer(context, layer, 16, 2);
    }
  });
}

TYPED_TEST(CodesTest, LinearLayers) {
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 3, .tier = tier});
    for (const auto& [rows, depth, outputs] :
         {std::tuple{1, 70, 90}, {5, 257, 48}, {17, 300, 257}, {1100, 64, 33}}) {
      const CodedLayer<TypeParam> layer({rows, depth, outputs, true, {}, 0.0F});
      for (const bool stored : {false, true}) {
        TestMatrix<TypeParam> y(rows, outputs, 5);
        if (stored) {
          linear_as_stored(context, layer.x.view(), layer.gate_view(), y.view());
        } else {
          linear(context, layer.x.view(), layer.packed().view(), nullptr, y.view());
        }
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t n = 0; n < outputs; ++n) {
            double expected = 0, magnitude = 0;
            for (std::int64_t k = 0; k < depth; ++k) {
              const double term = double{layer.x.value(r, k)} * layer.gate.value(n, k);
              expected += term;
              magnitude += std::abs(term);
            }
            const double bound = accumulation_bound(static_cast<double>(depth + 1), magnitude);
            ASSERT_NEAR(y.value(r, n), expected,
                        bound + 1.01 * rounding_bound<TypeParam>(std::abs(expected) + bound))
                << name_of(tier) << " " << r << "," << n << (stored ? " as stored" : " packed");
          }
        }
      }
    }
  }
}

// Down as checkpoints have it, [D, H] with a scale for each output, and copies of both.
TYPED_TEST(CodesTest, PreparedLayers) {
  constexpr DType kDType = dtype_of<TypeParam>::value;
  this->on_every_tier(2, [](Context& context) {
    CodedLayer<TypeParam> layer({40, 70, 290, true, {}, 2.0F});
    const OwnedWeights weights = layer.weights();
    TestMatrix<TypeParam> direct(40, 70);
    ffn(context, std::as_const(layer.x).view(), weights, {}, direct.view());
    FfnWeights stored = weights;
    stored.gate = layer.gate_view();
    std::vector<std::int8_t> memory(70 * 290);
    FfnWeights by_output = stored;
    by_output.down = transpose(stored.down, memory.data(), 290);
    EXPECT_EQ(by_output.down.scaled_by, ScaledBy::row);
    for (const bool spread : {false, true}) {
      for (const bool neuron_major : {false, true}) {
        twell::Layer prepared(context, neuron_major ? stored : by_output, {},
                              {.dtype = kDType, .neuron_major = neuron_major, .spread = spread});
        TestMatrix<TypeParam> y(40, 70);
        prepared.run(context, std::as_const(layer.x).view(), y.view());
        EXPECT_EQ(prepared.gate_form(), GateForm::packed);
        EXPECT_FALSE(prepared.weights_changed());
        for (std::int64_t r = 0; r < 40; ++r) {
          ASSERT_EQ(std::memcmp(&y.at(r, 0), &direct.at(r, 0), 70 * sizeof(TypeParam)), 0);
        }
      }
    }
  });
}

TEST(Codes, PanelsHoldCodesSumsAndScales) {
  const CodedLayer<float> layer({1, 300, 20});
  const WeightView codes = layer.gate_view();
  const PackedWeight packed(codes);
  const auto* at = static_cast<const std::int8_t*>(packed.view().data);
  for (std::int64_t n = 0; n < 32; ++n) {
    const std::int8_t* panel = at + n / 16 * code_panel_bytes(300);
    for (std::int64_t block = 0; block < 2; ++block, panel += 16 * 260) {
      std::int32_t head = 0, sum = 0;
      std::memcpy(&head, panel + n % 16 * 4, 4);
      for (std::int64_t k = block * 256; k < (block == 0 ? 256 : 320); ++k) {
        const std::int64_t in = k - block * 256;
        const std::int8_t code = panel[16 * 4 + in / 4 * 64 + n % 16 * 4 + in % 4];
        EXPECT_EQ(code, n < 20 && k < 300 ? codes.row<std::int8_t>(n)[k] : 0) << n << "," << k;
        sum += code;
      }
      EXPECT_EQ(head, -sum);
    }
    EXPECT_EQ(packed.view().scales[n], n < 20 ? codes.scales[n] : 0.0F);
  }
  EXPECT_EQ(packed_bytes(WeightType::int8, 20, 300), std::size_t{2 * (16 * (320 + 8) + 64)});
}

TEST(Codes, ErrorsNameTheArgument) {
  Context context({.threads = 1, .tier = {}});
  CodedLayer<bf16> layer({4, 32, 64});
  const OwnedWeights good = layer.weights();
  TestMatrix<bf16> y(4, 32);
  const ConstMatrixView x = std::as_const(layer.x).view();
  const auto run = [&](const FfnWeights& weights) {
    return message_of([&] { ffn(context, x, weights, {}, y.view()); });
  };
  EXPECT_EQ(run(good), "");
  FfnWeights bad = good;
  bad.up->scales = nullptr;
  EXPECT_EQ(run(bad), "twell::ffn: up: int8 without scales");
  bad = good;
  bad.down.scaled_by = ScaledBy::row;
  EXPECT_EQ(run(bad), "twell::ffn: down: expected scales of its columns, got those of its rows");
  bad = good;
  bad.gate = layer.gate_view();
  EXPECT_EQ(run(bad),
            "twell::ffn: gate: expected a packed weight, got int8 as stored, which no screen is "
            "made of");
  std::vector<float> scales(64, 1.0F);
  scales[5] = std::numeric_limits<float>::infinity();
  WeightView codes = layer.gate_view();
  codes.scales = scales.data();
  EXPECT_EQ(message_of([&] { PackedWeight packed(codes); }),
            "twell::pack_weight: w: the scale of row 5 is not finite");
  FfnPattern pattern;
  EXPECT_EQ(message_of([&] { ffn_forward(context, x, good, {}, y.view(), pattern); }),
            "twell::ffn_forward: gate: expected bf16 or f32, got int8");
  TestMatrix<float> back(64, 32);
  EXPECT_EQ(message_of([&] { unpack_weight(good.gate, back.view()); }),
            "twell::unpack_weight: panels: expected bf16 or f32, got int8");
}

}  // namespace
}  // namespace twell
