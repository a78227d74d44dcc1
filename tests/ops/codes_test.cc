// Layers and linear layers of int8 and int4 weights on every tier, against the fp64 definition on
// the numbers that the codes stand for.
#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <numeric>
#include <random>

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

// x and y of X, weights of W.
template <class X, class W>
struct Pair {
  using Input = X;
  using Weight = W;
};

template <class P>
class CodesTest : public testing::Test {
 protected:
  using T = typename P::Input;
  using Coded = test::Layer<T, typename P::Weight>;

  template <class F>
  static void on_every_tier(int threads, F f) {
    for (CpuTier tier : available_cpu_tiers()) {
      Context context({.threads = threads, .tier = tier});
      f(context);
    }
  }
};
using Types = testing::Types<Pair<bf16, std::int8_t>, Pair<float, std::int8_t>, Pair<bf16, Int4>,
                             Pair<float, Int4>>;
TYPED_TEST_SUITE(CodesTest, Types);

TYPED_TEST(CodesTest, TailSizes) {
  this->on_every_tier(2, [](Context& context) {
    // Below and above the rows that multiply codes as they come, on every tier.
    for (std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 13, 17, 33, 63}) {
      typename TestFixture::Coded layer({tokens, 40, 70});
      check_layer(context, layer, 16, 4);
    }
    // Blocks of codes are 256 inputs, their steps 4, and x has 32 at a time.
    for (std::int64_t depth : {1, 2, 3, 4, 5, 31, 33, 63, 64, 100, 255, 256, 257, 300, 520}) {
      for (std::int64_t tokens : {1, 9}) {
        typename TestFixture::Coded layer({tokens, depth, 48});
        check_layer(context, layer, 32, 3);
      }
    }
    for (std::int64_t neurons : {1, 15, 16, 17, 31, 33, 64, 255, 257, 513, 600}) {
      typename TestFixture::Coded layer({18, 48, neurons});
      check_layer(context, layer);
    }
  });
}

TYPED_TEST(CodesTest, EveryActivationAndDensity) {
  this->on_every_tier(2, [](Context& context) {
    for (Activation kind : {Activation::relu, Activation::relu_squared, Activation::fat_relu}) {
      for (bool gated : {true, false}) {
        typename TestFixture::Coded layer({37, 96, 300, gated, {kind, 0.25F}, 1.0F});
        check_layer(context, layer);
      }
    }
    for (float shift : {20.0F, 3.0F, 1.0F, 0.0F, -20.0F}) {
      typename TestFixture::Coded layer({21, 64, 200, true, {}, shift});
      check_layer(context, layer, 64, 16);
    }
  });
}

TYPED_TEST(CodesTest, MoreRowsThanABlockAndMoreThreadsThanTiles) {
  for (const int threads : {5, 16}) {
    this->on_every_tier(threads, [](Context& context) {
      for (std::int64_t tokens : {1, 4, 193, 1100}) {
        typename TestFixture::Coded layer({tokens, 64, 272});
        check_layer(context, layer);
      }
    });
  }
}

TYPED_TEST(CodesTest, AdversarialPatternsOnEveryPath) {
  for (Pattern pattern : kAllPatterns) {
    for (const auto& [tokens, gated] : {std::pair{20, true}, {65, false}, {130, true}}) {
      const auto wanted = activation_matrix<typename TestFixture::T>(pattern, tokens, 290, 4);
      std::int64_t nnz = 0;
      auto layer = layer_that_fires<typename TestFixture::T, typename TypeParam::Weight>(
          tokens, 290, gated,
          [&](std::int64_t r, std::int64_t n) { return wanted.value(r, n) != 0.0; });
      for (std::int64_t r = 0; r < tokens; ++r) {
        for (std::int64_t n = 0; n < 290; ++n) nnz += wanted.value(r, n) != 0.0;
      }
      check_every_path(layer, nnz);
    }
  }
}

// Which neurons fire for a row: few or many at random, or side by side.
class Firing {
 public:
  std::vector<bool> next(std::int64_t neurons) {
    std::vector<bool> fires(static_cast<std::size_t>(neurons));
    if (draw(4) == 0) {
      const std::int64_t begin = draw(neurons), end = begin + 1 + draw(neurons - begin);
      std::fill(fires.begin() + begin, fires.begin() + end, true);
      return fires;
    }
    const double share =
        std::array{0.001, 0.01, 0.05, 0.3, 0.97}[static_cast<std::size_t>(draw(5))];
    std::bernoulli_distribution fire(share);
    for (auto&& one : fires) one = fire(random_);
    return fires;
  }
  std::int64_t draw(std::int64_t below) {
    return std::uniform_int_distribution<std::int64_t>(0, below - 1)(random_);
  }

 private:
  std::mt19937 random_{20};  // NOLINT(cert-msc51-cpp): the same each time
};

// Each neuron has an input and an output of its own, so every one that is lost or made up is seen.
// TWELL_PATTERNS sets how many rows are tried on each tier.
TYPED_TEST(CodesTest, NoNeuronIsLostInAnyPattern) {
  constexpr std::int64_t kNeurons = 320;
  const char* asked = std::getenv("TWELL_PATTERNS");
  const std::int64_t patterns = asked != nullptr ? std::atoll(asked) : 800;
  this->on_every_tier(2, [&](Context& context) {
    Firing firing;
    std::int64_t tried = 0;
    for (std::int64_t rows : {1, 2, 5, 16, 17, 64, 193, 1100}) {
      typename TestFixture::Coded layer({rows, kNeurons, kNeurons});
      for (auto* weight : {&layer.gate, &layer.up, &layer.down}) {
        for (std::int64_t n = 0; n < kNeurons; ++n) {
          for (std::int64_t k = 0; k < kNeurons; ++k) weight->set(n, k, 0.0F);
          weight->set(n, n, std::ldexp(1.0F, static_cast<int>(n % 5) - 2));
        }
      }
      layer.settle();
      const OwnedWeights weights = layer.weights();
      TestMatrix<typename TestFixture::T> y(rows, kNeurons);
      for (std::int64_t of_these = 0; of_these < patterns / 8; of_these += rows, tried += rows) {
        std::vector<std::vector<bool>> fires;
        for (std::int64_t r = 0; r < rows; ++r) {
          fires.push_back(firing.next(kNeurons));
          for (std::int64_t n = 0; n < kNeurons; ++n)
            layer.x.set(r, n, fires.back()[n] ? 1.0F : -1.0F);
        }
        ffn(context, std::as_const(layer.x).view(), weights, {}, y.view());
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t n = 0; n < kNeurons; ++n) {
            const double fired =
                double{layer.gate.value(n, n)} * layer.up.value(n, n) * layer.down.value(n, n);
            const double expected =
                fires[static_cast<std::size_t>(r)][static_cast<std::size_t>(n)] ? fired : 0;
            ASSERT_NEAR(y.value(r, n), expected, expected / 100)
                << name_of(context.tier()) << ", " << rows << " rows: " << r << "," << n;
          }
        }
      }
    }
    EXPECT_GE(tried, patterns / 8 * 8);
  });
}

TYPED_TEST(CodesTest, HotNeuronsAmongColdOnes) {
  this->on_every_tier(2, [](Context& context) {
    for (std::int64_t tokens : {15, 65, 193, 1100}) {
      for (bool gated : {true, false}) {
        typename TestFixture::Coded layer({tokens, 70, 290, gated, {}, 2.5F});
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
          typename TestFixture::Coded layer({300, 290, 400, gated, {}, shift});
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
      typename TestFixture::Coded layer({tokens, 45, 83});
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
      const typename TestFixture::Coded layer({rows, depth, outputs, true, {}, 0.0F});
      const auto check = [&]<class Y>(bool stored, Y) {
        TestMatrix<Y> y(rows, outputs, 5);
        if (stored) {
          linear_as_stored(context, layer.x.view(), layer.gate_view(), y.view());
        } else {
          linear(context, layer.x.view(), layer.packed().view(), nullptr, y.view());
        }
        SCOPED_TRACE(std::string(name_of(tier)) + (stored ? " as stored" : " packed"));
        expect_linear(layer, y);
      };
      for (const bool stored : {false, true}) {
        check(stored, typename TestFixture::T());
        check(stored, float());
      }
    }
  }
}

// A large input whose weight is zero: what the terms of x leave out of the others is at most
// 2⁻²² of it, or in bf16 2⁻¹⁵ where it is at most 32 times the mean.
TYPED_TEST(CodesTest, OneInputIsFarLargerThanTheOthers) {
  using T = typename TestFixture::T;
  this->on_every_tier(2, [](Context& context) {
    for (const float size : {0.5F, 30.0F, 40.0F, 1e3F, 1e6F, 1e12F}) {
      for (const std::int64_t rows : {1, 2, 5}) {
        typename TestFixture::Coded layer({rows, 256, 64, true, {}, 0.0F});
        for (std::int64_t n = 0; n < 64; ++n) layer.gate.set(n, 7, 0.0F);
        layer.settle();
        // One row is without: rows need not have the same number of terms.
        for (std::int64_t r = 0; r < rows; ++r) layer.x.set(r, 7, r == 1 ? 0.25F : size);
        TestMatrix<T> y(rows, 64);
        linear(context, std::as_const(layer.x).view(), layer.packed().view(), nullptr, y.view());
        for (std::int64_t r = 0; r < rows; ++r) {
          double largest = 0, mean = 0;
          for (std::int64_t k = 0; k < 256; ++k) {
            largest = std::max(largest, std::abs(double{layer.x.value(r, k)}));
            mean += std::abs(double{layer.x.value(r, k)}) / 256;
          }
          const bool few = std::is_same_v<T, bf16> && largest <= 32.01 * mean;
          for (std::int64_t n = 0; n < 64; ++n) {
            double expected = 0, magnitude = 0, weights = 0;
            for (std::int64_t k = 0; k < 256; ++k) {
              const double term = double{layer.x.value(r, k)} * layer.gate.value(n, k);
              expected += term;
              magnitude += std::abs(term);
              weights += std::abs(double{layer.gate.value(n, k)});
            }
            const double bound =
                accumulation_bound(257, magnitude) + std::ldexp(largest * weights, few ? -15 : -22);
            ASSERT_NEAR(y.value(r, n), expected,
                        bound + 1.01 * rounding_bound<T>(std::abs(expected) + bound))
                << name_of(context.tier()) << ", size " << size << ": " << r << "," << n;
          }
        }
      }
    }
  });
}

// Down as checkpoints have it, [D, H] with a scale for each output, and copies of both.
TYPED_TEST(CodesTest, PreparedLayers) {
  constexpr DType kDType = dtype_of<typename TestFixture::T>::value;
  this->on_every_tier(2, [](Context& context) {
    using T = typename TestFixture::T;
    typename TestFixture::Coded layer({40, 70, 290, true, {}, 2.0F});
    const std::int64_t width = layer.x.cols();
    const OwnedWeights weights = layer.weights();
    TestMatrix<T> direct(40, width);
    ffn(context, std::as_const(layer.x).view(), weights, {}, direct.view());
    FfnWeights stored = weights;
    stored.gate = layer.gate_view();
    std::vector<std::int8_t> memory(static_cast<std::size_t>(width * 290));
    FfnWeights by_output = stored;
    by_output.down = transpose(stored.down, memory.data(), 290);
    EXPECT_EQ(by_output.down.scaled_by, ScaledBy::row);
    for (const bool spread : {false, true}) {
      for (const bool neuron_major : {false, true}) {
        const FfnWeights& w = neuron_major ? stored : by_output;
        twell::Layer prepared(
            context, {w.gate, w.up, w.down, neuron_major}, {},
            {.block = {.dtype = kDType, .spread = spread}, .path = LayerPath::sparse});
        TestMatrix<T> y(40, width);
        prepared.run(context, std::as_const(layer.x).view(), y.view());
        EXPECT_EQ(prepared.block()->gate_form(), GateForm::packed);
        // What is copied is copied with its scales.
        EXPECT_EQ(prepared.up()->scales == stored.up->scales, !spread);
        EXPECT_EQ(prepared.down().scales == stored.down.scales, neuron_major && !spread);
        for (std::int64_t r = 0; r < 40; ++r) {
          ASSERT_EQ(std::memcmp(&y.at(r, 0), &direct.at(r, 0),
                                static_cast<std::size_t>(width) * sizeof(T)),
                    0);
        }
      }
    }
  });
}

// By dense products of the codes, which x and h become sums of bytes for.
TYPED_TEST(CodesTest, DenseLayers) {
  using T = typename TestFixture::T;
  this->on_every_tier(3, [](Context& context) {
    for (const auto& [tokens, depth, neurons, gated] : {std::tuple{1, 70, 290, true},
                                                        {7, 300, 70, false},
                                                        {40, 70, 290, true},
                                                        {300, 40, 531, true}}) {
      typename TestFixture::Coded layer({tokens, depth, neurons, gated, {}, 1.0F});
      const OwnedWeights owned = layer.weights();
      FfnWeights w = owned;
      w.gate = layer.gate_view();
      twell::Layer dense(context, {w.gate, w.up, w.down, true}, {},
                         {.block = {.dtype = dtype_of<T>::value}, .path = LayerPath::dense});
      TestMatrix<T> y(tokens, layer.x.cols());
      FfnCounts counts;
      EXPECT_EQ(dense.run(context, std::as_const(layer.x).view(), y.view(), &counts),
                LayerPath::dense);
      TwellMatrix packed({tokens, neurons, 256, 32, dtype_of<T>::value});
      gemm_relu_twell(context, std::as_const(layer.x).view(), owned.gate, {}, packed);
      expect_output(packed, layer, y, true);
      expect_counts(counts, packed);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// Figures are of numbers: a layer of codes is sparse until calls of it were timed, for good where
// built-in figures are given, and takes no measured ones.
TEST(Codes, ChooseByTimingsOfCodes) {
  Context context({.threads = 1, .tier = {}});
  CodedLayer<float> layer({64, 64, 256, true, {}, -20.0F});  // all fire
  const OwnedWeights owned = layer.weights();
  FfnWeights w = owned;
  w.gate = layer.gate_view();
  CostModel dense_is_free = built_in_cost_model(context.tier());
  for (double& figure : dense_is_free.dense) figure = 1e-9;
  CostModel measured = dense_is_free;
  measured.measured_on = "here";
  for (const std::optional<CostModel>& cost :
       {std::optional<CostModel>(), std::optional(measured), std::optional(dense_is_free)}) {
    LayerOptions options{.block = {.dtype = DType::f32}};
    options.cost = cost;
    twell::Layer chosen(context, {w.gate, w.up, w.down, true}, {}, options);
    const ConstMatrixView x = std::as_const(layer.x).view();
    TestMatrix<float> y(64, 64);
    EXPECT_EQ(chosen.run(context, x.slice(0, 8), y.view().slice(0, 8)), LayerPath::sparse);
    chosen.run(context, x, y.view());
    EXPECT_THAT(chosen.describe(context, 64), testing::HasSubstr("here: "));
    if (cost && cost->measured_on.empty()) {
      EXPECT_THAT(chosen.describe(context, 64), testing::EndsWith("here: sparse"));
    } else {
      EXPECT_EQ(chosen.chooser()->cost().measured_on, "");
    }
  }
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

TEST(Codes, PanelsOfInt4HoldCodesAndScales) {
  const test::Layer<float, Int4> layer({1, 288, 20});
  const WeightView rows = layer.gate_view();
  const PackedWeight packed(rows);
  const auto* at = static_cast<const std::uint8_t*>(packed.view().data);
  for (std::int64_t n = 0; n < 32; ++n) {
    const std::uint8_t* panel = at + n / 16 * panel_bytes(WeightType::int4, 288);
    for (std::int64_t k = 0; k < 288; ++k) {
      const std::uint8_t* block = panel + k / 256 * (128 + 256 * 8);
      const std::int64_t in = k % 256;
      const std::uint8_t byte = block[128 + in / 8 * 64 + n % 16 * 4 + in % 4];
      const int code = (in % 8 < 4 ? byte & 15 : byte >> 4) - 8;
      const float scale = int4_scale(block[in / 32 * 16 + n % 16]);
      const float number = static_cast<float>(code) * scale * packed.view().scales[n];
      EXPECT_EQ(number, n < 20 ? layer.gate.value(n, k) : 0.0F) << n << "," << k;
    }
  }
  EXPECT_EQ(packed_bytes(WeightType::int4, 20, 288),
            std::size_t{2 * (16 * 288 / 2 + 2 * 128 + 64)});
}

TEST(Codes, RowsOfInt4HaveScalesOfFiveBitsAndSixteenOctaves) {
  std::int8_t codes[64];
  std::uint8_t row[34];
  float scale = 0;
  const auto made = [&](float first, float second) {
    const float scales[] = {first, second};
    return make_int4_row(codes, scales, 64, row, &scale);
  };
  std::fill_n(codes, 64, std::int8_t{-3});
  for (const float largest : {0x1.fp0F, 0x1p-90F, 0x1.8p90F}) {
    for (int bits = 16; bits < 32; ++bits) {
      for (int octave = 0; octave > -16; --octave) {
        const float second = std::ldexp(static_cast<float>(bits), std::ilogb(largest) - 4 + octave);
        ASSERT_TRUE(made(largest, second));
        EXPECT_EQ(int4_scale(row[0]) * scale, largest);
        EXPECT_EQ(int4_scale(row[17]) * scale, second);
      }
    }
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float wrong : {0.0F, -1.0F, nan, HUGE_VALF, 1 + 0x1p-5F, 0x1p-16F, 0x1p101F}) {
    EXPECT_FALSE(made(1.0F, wrong)) << wrong;
  }
  std::fill_n(codes + 32, 32, std::int8_t{0});  // whose scale does not matter
  EXPECT_TRUE(made(1.0F, nan));
  EXPECT_EQ(scale, 1.0F);
  std::fill_n(codes, 64, std::int8_t{0});
  EXPECT_TRUE(made(nan, nan));
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
  test::Layer<bf16, Int4> small({4, 32, 64});
  bad = good;
  bad.down = small.gate_view();
  EXPECT_EQ(run(bad), "twell::ffn: down: expected scales of its columns, got those of its rows");
  const auto make = [&] {
    return message_of([&] { twell::Layer(context, {bad.gate, bad.up, bad.down, true}, {}); });
  };
  EXPECT_EQ(make(), "twell::Layer: gate: expected a weight as stored, got a packed one");
  bad.gate = small.gate_view();
  bad.up = small.gate_view();
  EXPECT_EQ(make(), "twell::Layer: down: expected bf16, f32 or codes of 8 bits, got int4");
  bad.up->cols = 31;
  EXPECT_EQ(run({good.gate, bad.up, good.down}),
            "twell::ffn: up: expected int4 [64, 32], got int4 [64, 31]");
  TestMatrix<float> back(64, 32);
  EXPECT_EQ(message_of([&] { unpack_weight(good.gate, back.view()); }),
            "twell::unpack_weight: panels: expected bf16 or f32, got int8");
}

}  // namespace
}  // namespace twell
