// Norms, rotary embedding, the random generator and the conversion of weights.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <tuple>
#include <utility>

#include "decoder/linear.h"
#include "decoder/norm.h"
#include "decoder/random.h"
#include "decoder/rms_norm.h"
#include "decoder/rope.h"
#include "decoder/sparse_operators.h"
#include "decoder/weights.h"
#include "twell/coded_matrix.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

TEST(MatrixView, HasTheTensorsTypeAndShape) {
  const std::pair<at::ScalarType, DType> types[] = {
      {at::kBFloat16, DType::bf16}, {at::kHalf, DType::f16}, {at::kFloat, DType::f32}};
  for (const auto& [type, expected] : types) {
    const at::Tensor matrix = at::zeros({3, 8}, type).narrow(1, 0, 5);
    const ConstMatrixView view = matrix_view(matrix);
    EXPECT_EQ(view.dtype, expected);
    EXPECT_EQ(view.data, matrix.const_data_ptr());
    EXPECT_EQ(std::tie(view.rows, view.cols, view.row_stride), std::tuple(3, 5, 8));
  }
  EXPECT_THROW(matrix_view(at::zeros({3, 8}, at::kDouble)), Error);
}

TEST(RmsNorm, IsItsDefinition) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t width : {1, 15, 16, 17, 64, 2048}) {
      at::manual_seed(1);
      const at::Tensor x = (at::randn({3, 2, width}) * 3).to(dtype);
      const at::Tensor weight = at::randn({width}).to(dtype);
      const at::Tensor wide = x.to(at::kDouble);
      const at::Tensor exact =
          wide / (wide.square().mean(-1, true) + 1e-5).sqrt() * weight.to(at::kDouble);
      // The mean of squares errs by (n / 16 + 18) u at most with 16 partial sums, half of that
      // after the root; four more roundings, and the one to the dtype.
      const double u = 0x1.0p-24;
      const double last = dtype == at::kFloat ? u : 0x1.0p-8;
      const at::Tensor bound =
          exact.abs() * ((static_cast<double>(width) / 16 + 18) / 2 * u + 4 * u + last);
      const at::Tensor with_grad = rms_norm(x, weight, 1e-5);
      const at::NoGradGuard no_grad;
      for (const at::Tensor& y : {with_grad, rms_norm(x, weight, 1e-5)}) {
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_LE(((y.to(at::kDouble) - exact).abs() - bound).max().item<double>(), 0.0) << width;
      }
    }
  }
}

TEST(RmsNorm, GradientsAreThoseOfTheDefinition) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t rows : {1, 63, 64, 65, 200}) {
      for (const std::int64_t width : {1, 17, 256}) {
        at::manual_seed(rows + width);
        const auto input = [&](at::IntArrayRef shape, double scale) {
          return (at::randn(shape) * scale).to(dtype).requires_grad_(true);
        };
        const at::Tensor x = input({rows, width}, 3), weight = input({width}, 1);
        const at::Tensor dy = at::randn({rows, width}).to(dtype);
        rms_norm(x, weight, 1e-5).backward(dy);

        const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
        const at::Tensor s = (wide(x).square().mean(-1, true) + 1e-5).rsqrt();
        const at::Tensor p = wide(dy) * wide(weight), along = wide(x) * s.pow(3);
        const at::Tensor dx = p * s - along * (p * wide(x)).mean(-1, true);
        const at::Tensor terms = wide(x) * s * wide(dy);
        // As above for s; a sum of products errs by (n / 16 + 20) u of its terms.
        const double u = 0x1.0p-24, last = dtype == at::kFloat ? u : 0x1.0p-8;
        const double sum = (static_cast<double>(width) / 16 + 20) * u, root = sum / 2 + 2 * u;
        const at::Tensor dx_bound =
            (p * s).abs() * (root + 3 * u) +
            along.abs() * (p * wide(x)).abs().mean(-1, true) * (sum + 3 * root + 5 * u) +
            dx.abs() * last;
        const at::Tensor dw_bound =
            terms.abs().sum(0) * (static_cast<double>(rows) * u + root + 3 * u) +
            terms.sum(0).abs() * last;
        const auto excess = [&](const at::Tensor& got, const at::Tensor& exact,
                                const at::Tensor& bound) {
          EXPECT_EQ(got.scalar_type(), dtype);
          return ((wide(got) - exact).abs() - bound).max().item<double>();
        };
        EXPECT_LE(excess(x.grad(), dx, dx_bound), 0.0) << rows << " x " << width;
        EXPECT_LE(excess(weight.grad(), terms.sum(0), dw_bound), 0.0) << rows << " x " << width;
      }
    }
  }
}

// y = x̂ ⊙ w + b in every form, with and without gradients.
TEST(Norm, EveryFormIsItsDefinition) {
  using Kind = io::NormSpec::Kind;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Kind kind : {Kind::none, Kind::rms, Kind::layer}) {
      for (int bits = 0; bits < 8; ++bits) {
        const bool has_weight = (bits & 1) != 0, has_bias = (bits & 4) != 0;
        const bool plus_one = (bits & 2) != 0 && has_weight;
        at::manual_seed(bits);
        constexpr std::int64_t kWidth = 48;
        // A mean that is no noise: RMS and layer norms differ.
        const at::Tensor x = (at::randn({5, kWidth}) * 3 + 1).to(dtype);
        Norm norm{{kind, has_weight, plus_one, has_bias, 1e-5}};
        if (has_weight) norm.weight.tensor = at::randn({kWidth}).to(dtype);
        if (has_bias) norm.bias.tensor = at::randn({kWidth}).to(dtype);
        at::Tensor exact = x.to(at::kDouble);
        const at::Tensor size = exact.abs() + exact.abs().mean(-1, true);
        at::Tensor factor = at::ones({5, 1}, at::kDouble);
        if (kind != Kind::none) {
          if (kind == Kind::layer) exact = exact - exact.mean(-1, true);
          factor = (exact.square().mean(-1, true) + 1e-5).rsqrt();
          exact = exact * factor;
          if (has_weight) {
            const at::Tensor w = norm.weight.tensor.to(at::kDouble) + (plus_one ? 1.0 : 0.0);
            exact = exact * w;
            factor = factor * w.abs();
          }
          if (has_bias) exact = exact + norm.bias.tensor.to(at::kDouble);
        }
        // Mean, root, factor, product and sum in fp32, sums of 48 terms, and the last rounding.
        const double u = 0x1.0p-24, last = dtype == at::kFloat ? u : 0x1.0p-8;
        const at::Tensor bound = size * factor * (60 * u) + exact.abs() * (8 * u + last) + 4 * u;
        const at::Tensor with_grad = norm(x);
        const at::NoGradGuard no_grad;
        for (const at::Tensor& y : {with_grad, norm(x)}) {
          EXPECT_EQ(y.scalar_type(), dtype);
          EXPECT_LE(((y.to(at::kDouble) - exact).abs() - bound).max().item<double>(), 0.0)
              << static_cast<int>(kind) << " " << bits;
        }
      }
    }
  }
}

io::ModelConfig rope_config() {
  io::ModelConfig config;
  config.head_dim = 16;
  config.block.positions.theta = 10000.0;
  return config;
}

TEST(Rope, TurnsPairsWithAndWithoutGradients) {
  RopeTable table(rope_config());
  const Rotation rotation = table.rotation(at::arange(24) % 12, 12);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({24, 48}).to(dtype);
    const at::Tensor with_grad = rotate(x, rotation);
    const at::NoGradGuard no_grad;
    at::Tensor in_place = x.clone();
    EXPECT_TRUE(rotate(in_place, rotation).is_same(in_place));
    const auto pairs = x.to(at::kDouble).view({24, 3, 2, 8}).unbind(2);
    const at::Tensor cos = rotation.cos.to(at::kDouble), sin = rotation.sin.to(at::kDouble);
    const at::Tensor exact =
        at::cat({pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin}, -1).flatten(1);
    // Two products and a sum in fp32, and the rounding to the dtype.
    const double u = 3 * 0x1.0p-24 + (dtype == at::kFloat ? 0x1.0p-24 : 0x1.0p-8);
    const double bound = u * x.abs().max().item<double>() * std::numbers::sqrt2;
    for (const at::Tensor& y : {with_grad, in_place}) {
      EXPECT_LE((y.to(at::kDouble) - exact).abs().max().item<double>(), bound);
    }
  }
}

// The first dimensions of a head as a head of that size would be, the others as they are.
TEST(Rope, ASharePassesTheOthersOn) {
  auto config = rope_config();
  config.head_dim = 4;
  RopeTable narrow(config);
  config.head_dim = 16;
  config.block.positions.share = 0.25;
  RopeTable table(config);
  const at::Tensor positions = at::arange(24);
  const at::Tensor x = at::randn({24, 48}), heads = x.view({24, 3, 16});
  const at::Tensor first = heads.narrow(2, 0, 4).reshape({24, 12});
  const at::Tensor turned = rotate(first, narrow.rotation(positions, 24)).view({24, 3, 4});
  const at::Tensor expected = at::cat({turned, heads.narrow(2, 4, 12)}, 2).flatten(1);
  EXPECT_FALSE(at::equal(expected, x));
  const Rotation rotation = table.rotation(positions, 24);
  EXPECT_TRUE(at::equal(rotate(x, rotation), expected));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(rotate(x.clone(), rotation), expected));
  config.block.positions.kind = io::PositionSpec::Kind::none;
  EXPECT_TRUE(at::equal(rotate(x.clone(), RopeTable(config).rotation(positions, 24)), x));
}

TEST(Rope, GradientsTurnBack) {
  RopeTable table(rope_config());
  const Rotation rotation = table.rotation(at::arange(24) % 12, 12);
  const at::Tensor x = at::randn({24, 48}).requires_grad_(true);
  rotate(x, rotation).backward(x.detach());
  const at::NoGradGuard no_grad;
  // Turned by its angle, the gradient is x again; each turn rounds three times, at a size of √2 x.
  EXPECT_LE((rotate(x.grad().clone(), rotation) - x).abs().max().item<double>(),
            6 * 0x1.0p-24 * std::numbers::sqrt2 * x.abs().max().item<double>());
}

TEST(Rope, TurnsByPositionTimesFrequency) {
  RopeTable table(rope_config());
  at::Tensor x = at::zeros({1, 16});
  x[0][2] = 1.0;  // the first of pair 2, whose partner is 10
  x = rotate(x, table.rotation(at::tensor({259}), 300));
  const double angle = 259.0 * std::pow(10000.0, -4.0 / 16.0);
  // The angle is an fp32 product of an fp32 frequency: 2^-23 of it.
  EXPECT_NEAR(x[0][2].item<double>(), std::cos(angle), angle * 0x1.0p-23 + 1e-7);
  EXPECT_NEAR(x[0][10].item<double>(), std::sin(angle), angle * 0x1.0p-23 + 1e-7);
  EXPECT_EQ(x.count_nonzero().item<std::int64_t>(), 2);
}

TEST(Rope, LlamaThreeScalingKeepsFastAndDividesSlowPairs) {
  auto config = rope_config();
  config.head_dim = 64;
  const auto plain = rope_frequencies(config);
  config.block.positions.scaling.kind = io::RopeScaling::Kind::llama3;
  config.block.positions.scaling.factor = 8.0;
  config.block.positions.scaling.low_freq_factor = 1.0;
  config.block.positions.scaling.high_freq_factor = 4.0;
  config.block.positions.scaling.original_max_position_embeddings = 512;
  const auto scaled = rope_frequencies(config);
  int kept = 0, divided = 0, between = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 512.0 / 4) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 512.0) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8.0F);
      ++divided;
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8.0F);
      ++between;
    }
  }
  EXPECT_GT(kept * divided * between, 0);
}

// Weights of one part and of several, rows in order and transposed views; with gradients too.
TEST(Linear, InF32IsTheProductRoundedOnce) {
  at::manual_seed(4);
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{70, 33}, {5000, 4096}}) {
    for (const bool transposed : {false, true}) {
      at::Tensor weight = at::randn({cols, rows}).to(at::kBFloat16).t();
      if (!transposed) weight = weight.contiguous();
      const at::Tensor bias = at::randn({rows}).to(at::kBFloat16);
      const at::Tensor x = at::randn({2, 3, cols}).to(at::kBFloat16);
      for (const at::Tensor& b : {at::Tensor(), bias}) {
        const at::Tensor wide = weight.to(at::kDouble), in = x.to(at::kDouble);
        at::Tensor exact = in.matmul(wide.t()), size = in.abs().matmul(wide.t().abs());
        if (b.defined()) {
          exact = exact + b.to(at::kDouble);
          size = size + b.to(at::kDouble).abs();
        }
        const at::Tensor y = linear_in_f32(x, weight, b);
        EXPECT_EQ(y.scalar_type(), at::kBFloat16);
        const double sums = static_cast<double>(cols + 2) * 0x1.0p-24;
        const at::Tensor bound = size * sums + exact.abs() * 0x1.01p-8;
        EXPECT_LE(((y.to(at::kDouble) - exact).abs() - bound).max().item<double>(), 0.0);
      }
    }
  }
}

class PlainSource final : public ParameterSource {
 public:
  at::Tensor take(const Parameter& parameter) override { return parameter.tensor; }
};

// y is those sums, rounded.
TEST(Linear, SumsAreWhatIsRounded) {
  at::manual_seed(6);
  constexpr std::int64_t kRows = 70, kCols = 64;
  const at::Tensor numbers = at::randn({kRows, kCols}).to(at::kBFloat16);
  const at::Tensor bias = at::randn({kRows}).to(at::kBFloat16);
  at::Tensor codes = at::empty({coded_extent(kRows, kCols, ScaledBy::row), kCols}, at::kChar);
  auto* const bytes = codes.mutable_data_ptr<std::int8_t>();
  for (std::int64_t i = 0; i < codes.numel(); ++i) {
    bytes[i] = static_cast<std::int8_t>(i * 31 % 251 - 125);
  }
  std::fill_n(reinterpret_cast<float*>(bytes + coded_scales_at(kRows, kCols)), kRows, 0x1p-6F);
  for (const at::Tensor& weight : {numbers, codes}) {
    Linear linear;
    linear.weight.tensor = weight;
    linear.bias.tensor = bias;
    PlainSource source;
    linear.pack(source);
    ASSERT_TRUE(linear.packed.defined());
    for (const std::int64_t rows : {0, 1, 8, 40}) {
      const at::Tensor x = at::randn({2, rows, kCols}).to(at::kBFloat16);
      const at::Tensor sums = linear.sums(x), y = linear(x);
      EXPECT_EQ(sums.scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(sums.to(at::kBFloat16), y)) << rows;
      EXPECT_EQ(at::equal(sums, y.to(at::kFloat)), rows == 0);
    }
  }
}

TEST(Linear, OfManyRowsHasTheSameGradients) {
  at::manual_seed(5);
  const auto leaf = [](at::IntArrayRef sizes) {
    return at::randn(sizes).to(at::kBFloat16).requires_grad_(true);
  };
  const at::Tensor x = leaf({100, 40}), weight = leaf({30, 40}), bias = leaf({30});
  linear_of(x, weight, bias).to(at::kFloat).square().sum().backward();
  const at::Tensor wide[] = {x.detach().to(at::kDouble), weight.detach().to(at::kDouble),
                             bias.detach().to(at::kDouble)};
  const at::Tensor dy = 2 * at::linear(wide[0], wide[1], wide[2]);
  const at::Tensor exact[] = {dy.matmul(wide[1]), dy.t().matmul(wide[0]), dy.sum(0)};
  const at::Tensor got[] = {x.grad(), weight.grad(), bias.grad()};
  for (std::size_t i = 0; i < 3; ++i) {
    // y, dy and the gradient are rounded to bf16.
    const double error = (got[i].to(at::kDouble) - exact[i]).norm().item<double>();
    EXPECT_LE(error, 3 * 0x1.0p-8 * exact[i].norm().item<double>()) << i;
  }
}

TEST(Weights, TransposedCopy) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [rows, cols] : {std::pair{1, 1}, {3, 70}, {33, 32}, {700, 1100}, {1500, 1}}) {
      const at::Tensor m = at::randn({rows, cols}).to(dtype);
      EXPECT_TRUE(at::equal(transposed_copy(m), m.t())) << rows << " x " << cols;
      EXPECT_TRUE(transposed_copy(m).is_contiguous());
    }
  }
}

TEST(Weights, RandomOnesDoNotDependOnThreads) {
  const Parameter matrix{"w", {300, 500}};
  const Parameter residual{"o", {300, 500}, ParameterKind::residual_matrix};
  std::vector<at::Tensor> first;
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    const auto source = make_random_source(at::kFloat, 9, 8, 0.02);
    const at::Tensor w = source->take(matrix);
    const at::Tensor o = source->take(residual);
    // Five standard errors of a standard deviation: σ / √(2 n).
    EXPECT_NEAR(w.std().item<double>(), 0.02, 5 * 0.02 / std::sqrt(2 * 150000.0));
    EXPECT_NEAR(o.std().item<double>(), 0.005, 5 * 0.005 / std::sqrt(2 * 150000.0));
    EXPECT_FALSE(at::equal(w, source->take(matrix)));
    if (!first.empty()) {
      EXPECT_TRUE(at::equal(first[0], w));
      EXPECT_TRUE(at::equal(first[1], o));
    }
    first = {w, o};
  }
}

TEST(Random, SameNumbersEverywhere) {
  // Of the published reference implementation, seed 1234567.
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ULL);
  EXPECT_EQ(random.next(), 3203168211198807973ULL);
  EXPECT_EQ(random.next(), 9817491932198370423ULL);
}

TEST(Random, MomentsOfItsDistributions) {
  Random random(1);
  constexpr int kDraws = 200000;
  double sum = 0, squares = 0, uniform = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double z = random.normal();
    sum += z;
    squares += z * z;
    uniform += random.uniform();
  }
  // Five standard errors: 1/√n, √(2/n), 1/√(12 n).
  const double n = kDraws;
  EXPECT_NEAR(sum / n, 0.0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1.0, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(uniform / n, 0.5, 5 / std::sqrt(12 * n));
}

}  // namespace
}  // namespace twell::lm
