// The screen on every tier: what it rules out is zero, and the rest is what the weight says.
#include <algorithm>
#include <functional>

#include "tests/ops/ffn_fixture.h"
#include "tests/support/worst_case.h"
#include "twell/status.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixture of this file

template <class T>
class ScreenTest : public testing::Test {};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(ScreenTest, Types);

// The activation itself: with the identity for down, y of a layer without a gate is h.
template <class T>
struct Fired {
  TestMatrix<T> h;
  FfnCounts counts;
};
template <class T>
Fired<T> activation_of(Context& context, const TestMatrix<T>& x, const TestMatrix<T>& gate,
                       const ActivationSpec& spec, const float* axis) {
  const std::int64_t neurons = gate.rows();
  TestMatrix<T> identity(neurons, neurons);
  identity.fill([](std::int64_t n, std::int64_t k) { return n == k ? 1.0F : 0.0F; });
  const FfnWeights weights = {
      ScreenedGate{gate.view(), Screen(gate.view(), axis)}, {}, std::as_const(identity).view()};
  Fired<T> out{TestMatrix<T>(x.rows(), neurons), {}};
  ffn(context, x.view(), weights, spec, out.h.view(), &out.counts);
  return out;
}

struct Exact {
  double sum = 0, magnitude = 0;
};
template <class T>
Exact exact_product(const TestMatrix<T>& x, std::int64_t r, const TestMatrix<T>& w,
                    std::int64_t n) {
  Exact out;
  for (std::int64_t k = 0; k < x.cols(); ++k) {
    const double product = double{x.value(r, k)} * double{w.value(n, k)};
    out.sum += product;
    out.magnitude += std::abs(product);
  }
  return out;
}

// Against the definition: exact zeros where the pre-activation is below the threshold by more than
// rounding, values within rounding elsewhere. A NaN hides the values of its row, and no neuron from
// the counts.
template <class T>
void expect_definition(const Fired<T>& fired, const TestMatrix<T>& x, const TestMatrix<T>& gate,
                       const ActivationSpec& spec) {
  const TestMatrix<T>& h = fired.h;
  std::vector<std::int64_t> least(fired.counts.neuron_nnz.size()),
      most(fired.counts.neuron_nnz.size());
  const auto threshold = static_cast<double>(spec.kept_above());
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    std::vector<Exact> row;
    bool spread = false;  // times the zeros of the identity, one makes NaN of its whole row
    for (std::int64_t n = 0; n < gate.rows(); ++n) {
      row.push_back(exact_product(x, r, gate, n));
      spread = spread || !(row.back().sum < 1e37);  // NaN, infinite, or so in f32
    }
    for (std::int64_t n = 0; n < gate.rows(); ++n) {
      const auto at = static_cast<std::size_t>(n);
      const auto [sum, magnitude] = row[at];
      const double delta =
          std::isfinite(sum) ? accumulation_bound(static_cast<double>(x.cols()), magnitude) : 0.0;
      const double low = ref::activate(sum - delta, spec);
      const double high = ref::activate(sum + delta, spec);
      least[at] += !(low < 0x1p-126);  // NaN fires; what is smaller may round to zero
      most[at] += !(high <= 0.0);
      const double got = h.value(r, n);
      if (spread) {
        ASSERT_TRUE(!std::isfinite(got) || sum < 1e37)
            << r << "," << n << ": " << got << " of " << sum;
        continue;
      }
      if (std::isinf(sum) || sum + delta <= threshold) {  // minus infinity
        ASSERT_EQ(got, 0.0) << r << "," << n << ": " << sum;
      } else {
        ASSERT_GE(got, low - 1.01 * rounding_bound<T>(low) - std::ldexp(low, -23)) << r << "," << n;
        ASSERT_LE(got, high + 1.01 * rounding_bound<T>(high) + std::ldexp(high, -23))
            << r << "," << n;
      }
    }
  }
  for (std::size_t n = 0; n < least.size(); ++n) {
    ASSERT_GE(fired.counts.neuron_nnz[n], least[n]) << "neuron " << n;
    ASSERT_LE(fired.counts.neuron_nnz[n], most[n]) << "neuron " << n;
  }
}

template <class T>
std::vector<float> mean_of(const TestMatrix<T>& x) {
  std::vector<float> mean(static_cast<std::size_t>(x.cols()));
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t k = 0; k < x.cols(); ++k) mean[static_cast<std::size_t>(k)] += x.value(r, k);
  }
  return mean;
}

template <class T>
void set_row(TestMatrix<T>& m, std::int64_t row, const std::vector<float>& values) {
  for (std::size_t k = 0; k < values.size(); ++k)
    m.set(row, static_cast<std::int64_t>(k), values[k]);
}
template <class T>
std::vector<float> row_of(const TestMatrix<T>& m, std::int64_t row) {
  std::vector<float> out;
  for (std::int64_t k = 0; k < m.cols(); ++k) out.push_back(m.value(row, k));
  return out;
}

// The tokens again and again, until they are more than AMX leaves to vector registers.
template <class T>
TestMatrix<T> repeated(const TestMatrix<T>& x) {
  TestMatrix<T> out(std::max<std::int64_t>(x.rows(), 21), x.cols());
  out.fill([&](std::int64_t r, std::int64_t k) { return x.value(r % x.rows(), k); });
  return out;
}

// On every tier; with the mean as axis, with a token, and with none.
template <class T>
void check(const TestMatrix<T>& x, const TestMatrix<T>& gate, const ActivationSpec& spec = {},
           int threads = 2) {
  const std::vector<float> mean = mean_of(x), token = row_of(x, 0);
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const float* axis : {mean.data(), token.data(), static_cast<const float*>(nullptr)}) {
      SCOPED_TRACE(std::string(name_of(tier)) + (axis == nullptr       ? ", no axis"
                                                 : axis == mean.data() ? ", mean"
                                                                       : ", token"));
      Context context({.threads = threads, .tier = tier});
      expect_definition(activation_of(context, x, gate, spec, axis), x, gate, spec);
      if (tier != CpuTier::amx) continue;
      const TestMatrix<T> many = repeated(x);
      expect_definition(activation_of(context, many, gate, spec, axis), many, gate, spec);
    }
  }
}

TYPED_TEST(ScreenTest, TailSizes) {
  for (const std::int64_t tokens : {1, 2, 5, 6, 7, 17, 63}) {
    const Layer<TypeParam> layer({tokens, 40, 70});
    check(layer.x, layer.gate);
  }
  for (const std::int64_t depth : {1, 3, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 600}) {
    const Layer<TypeParam> layer({9, depth, 48});
    check(layer.x, layer.gate);
  }
  for (const std::int64_t neurons : {1, 15, 16, 17, 63, 65, 255, 257, 600}) {
    const Layer<TypeParam> layer({18, 48, neurons});
    check(layer.x, layer.gate);
  }
}

TYPED_TEST(ScreenTest, EveryActivationAndDensity) {
  for (const Activation kind : {Activation::relu, Activation::relu_squared, Activation::fat_relu}) {
    for (const float shift : {20.0F, 3.0F, 1.0F, 0.0F, -20.0F}) {
      Layer<TypeParam> layer({37, 96, 300, false, {kind, 0.25F}, shift});
      check(layer.x, layer.gate, layer.shape.activation, 5);
    }
  }
}

// Neurons that fire by a hundredth of what 8 bits may leave out, of the token and of the weight.
TYPED_TEST(ScreenTest, KeepsWhatBarelyFires) {
  constexpr std::int64_t kPairs = 40, kDepth = 250;
  for (const float levels : {127.0F, 63.0F}) {  // of x: 63 with AVX2
    TestMatrix<TypeParam> x = random_matrix<TypeParam>(2 * kPairs, kDepth, 11);
    TestMatrix<TypeParam> gate = random_matrix<TypeParam>(2 * kPairs, kDepth, 12);
    for (std::int64_t p = 0; p < kPairs; ++p) {
      set_row(gate, p, worst_case(row_of(x, p), levels));
      set_row(x, kPairs + p, worst_case(row_of(gate, kPairs + p), 127.0F));
    }
    if (levels == 63.0F) {  // x in whole numbers that 7 bits hold
      for (std::int64_t p = 0; p < kPairs; ++p) {
        std::vector<float> a = row_of(gate, kPairs + p);
        set_row(x, kPairs + p, worst_case(a, levels));
      }
    }
    check(x, gate);
  }
}

TYPED_TEST(ScreenTest, LargeChannelsAndSpecialTokens) {
  Layer<TypeParam> layer({12, 530, 100, false, {}, 2.0F});
  for (std::int64_t r = 0; r < 12; ++r) {
    layer.x.set(r, 300, 80.0F);
    layer.x.set(r, 517, -400.0F);
  }
  for (std::int64_t k = 0; k < 530; ++k) {
    layer.x.set(1, k, 0.0F);
    layer.x.set(2, k, k == 77 ? 3.0F : 0.0F);
    layer.x.set(3, k, 1e-37F * layer.x.value(3, k));  // in part denormal
    layer.x.set(4, k, 1e30F * layer.x.value(4, k));
    layer.x.set(5, k, layer.x.value(0, k));
    layer.gate.set(3, k, 0.0F);
    layer.gate.set(4, k, 1e-36F * layer.gate.value(4, k));
    layer.gate.set(5, k, k == 77 ? 1.0F : 0.0F);
    layer.gate.set(6, k, layer.gate.value(7, k));
  }
  check(layer.x, layer.gate);
}

TYPED_TEST(ScreenTest, NanAndInfinityAreNeverRuledOut) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    Layer<TypeParam> layer({7, 83, 45, false, {}, 3.0F});
    layer.x.set(2, 5, bad);
    layer.gate.set(9, 1, bad);
    for (std::int64_t k = 0; k < 83; ++k) layer.gate.set(11, k, 0.0F);
    check(layer.x, layer.gate);
  }
}

// Nothing is left of them but their share of the axis.
TYPED_TEST(ScreenTest, TokensAlongTheAxis) {
  for (const std::int64_t depth : {1, 70}) {
    TestMatrix<TypeParam> x(6, depth);
    x.fill([](std::int64_t r, std::int64_t k) {
      return k == 0 ? (r % 2 == 0 ? 2.0F : -0.5F) * static_cast<float>(r) : 0.0F;
    });
    for (std::int64_t k = 0; k < depth; ++k) x.set(0, k, k == 0 ? 1.0F : 0.0F);  // the axis
    check(x, random_matrix<TypeParam>(50, depth, 3));
  }
}

template <class T>
TestMatrix<T> matrix_of(std::initializer_list<std::initializer_list<float>> rows) {
  TestMatrix<T> m(std::ssize(rows), std::ssize(*rows.begin()));
  std::int64_t r = 0;
  for (const auto& row : rows) set_row(m, r++, row);
  return m;
}

// Where squares vanish, products overflow, and a threshold in a token's unit does: found in review.
TYPED_TEST(ScreenTest, TheEndsOfTheRangeAreNeverRuledOut) {
  const auto fires = [](const TestMatrix<TypeParam>& x, const TestMatrix<TypeParam>& gate,
                        const ActivationSpec& spec, const std::vector<float>& axis) {
    for (const CpuTier tier : available_cpu_tiers()) {
      Context context({.threads = 1, .tier = tier});
      for (const auto& tokens : {x, repeated(x)}) {
        const auto got =
            activation_of(context, tokens, gate, spec, axis.empty() ? nullptr : axis.data());
        EXPECT_EQ(got.counts.candidates, tokens.rows() * gate.rows()) << name_of(tier);
      }
    }
  };
  for (const float f : {1.0F, 1e-10F, 1e-20F, 1e-24F, 1e-28F}) {
    TestMatrix<TypeParam> x(1, 256), gate(1, 256);
    x.fill([](std::int64_t, std::int64_t k) { return k == 0 ? -0.9F : 1.0F; });
    gate.fill([&](std::int64_t, std::int64_t k) { return k == 0 ? 127 * f : 0.49F * f; });
    fires(x, gate, {}, {});
  }
  const ActivationSpec above3 = {Activation::fat_relu, 3.0F};
  fires(matrix_of<TypeParam>({{1.0F, 1e-36F}}), matrix_of<TypeParam>({{100.0F, 1.0F}}), above3,
        {1, 0});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  fires(matrix_of<TypeParam>({{1.0F, 1e-36F}}), matrix_of<TypeParam>({{nan, 1.0F}, {1.0F, nan}}),
        above3, {1, 0});
  const float large = 0x1p116F;
  fires(matrix_of<TypeParam>({{1.0F, 0.01F}}), matrix_of<TypeParam>({{127 * large, -127 * large}}),
        {}, {1, 0});
  fires(matrix_of<TypeParam>({{0x1p-126F}}), matrix_of<TypeParam>({{1e30F}}), {}, {});
  fires(matrix_of<TypeParam>({{1e-37F}}), matrix_of<TypeParam>({{1e9F}}), {}, {1});
  fires(matrix_of<TypeParam>({{nan, 1.0F}, {1.0F, nan}}), matrix_of<TypeParam>({{-1.0F, -1.0F}}),
        above3, {});
}

// An axis of any kind changes how much is ruled out, and nothing else.
TYPED_TEST(ScreenTest, AnyAxisGivesTheSameBits) {
  const Layer<TypeParam> layer({33, 290, 130, false, {}, 1.5F});
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    const auto expected = activation_of(context, layer.x, layer.gate, {}, nullptr);
    for (const float value : {1e30F, -1.0F, 1e-30F, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> axis(290, value);
      axis[7] = 0.5F;
      const auto got = activation_of(context, layer.x, layer.gate, {}, axis.data());
      for (std::int64_t r = 0; r < 33; ++r) {
        ASSERT_EQ(std::memcmp(&got.h.at(r, 0), &expected.h.at(r, 0), 130 * sizeof(TypeParam)), 0);
      }
    }
  }
}

// Up and down of what the screen left, in every split of the work.
TYPED_TEST(ScreenTest, WholeLayers) {
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const std::int64_t tokens : {1, 4, 193, 1100}) {
      for (const bool gated : {true, false}) {
        Layer<TypeParam> layer({tokens, 64, 272, gated});
        SCOPED_TRACE(describe(layer.shape) + " on " + name_of(tier));
        Context context({.threads = 5, .tier = tier});
        const TestMatrix<TypeParam>& x = layer.x;
        const auto fired = activation_of(context, x, layer.gate, {}, nullptr);
        const TwellMatrix packed =
            pack(fired.h.view(), {tokens, 272, 256, 32, dtype_of<TypeParam>::value});
        TestMatrix<TypeParam> y(tokens, 64, 5);
        FfnCounts counts;
        ffn(context, x.view(), layer.screened(), {}, y.view(), &counts);
        EXPECT_EQ(counts.nnz(), packed.nnz());
        EXPECT_EQ(counts.candidates, fired.counts.candidates);
        expect_output(packed, layer, y, true);
      }
    }
  }
}

// It has a purpose: at 1 % few neurons are left, no fewer than fire.
TYPED_TEST(ScreenTest, RulesMostOut) {
  Layer<TypeParam> layer({64, 1024, 512, false, {}, 0.0F});
  for (std::int64_t k = 0; k < 64; ++k) {  // a direction that all tokens share
    for (std::int64_t r = 0; r < 64; ++r) layer.x.set(r, k, 1.0F);
    for (std::int64_t n = 0; n < 512; ++n) layer.gate.set(n, k, -2.3F / 64);
  }
  const std::vector<float> mean = mean_of(layer.x);
  for (const CpuTier tier : available_cpu_tiers()) {
    Context context({.threads = 2, .tier = tier});
    const auto got = activation_of(context, layer.x, layer.gate, {}, mean.data());
    const std::int64_t all = std::int64_t{64} * 512;
    EXPECT_GE(got.counts.candidates, got.counts.nnz());
    EXPECT_GT(got.counts.nnz(), all / 200);
    EXPECT_LT(got.counts.candidates, all / 10) << name_of(tier);
  }
}

TEST(Screen, ArgumentsAreChecked) {
  const Layer<float> layer({2, 8, 32, false});
  const Layer<float> other({2, 8, 33, false});
  Context context;
  TestMatrix<float> y(2, 8);
  const auto message = [&](const ScreenedGate& gate) {
    try {
      ffn(context, layer.x.view(), {gate, {}, layer.down.view()}, {}, y.view());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  const Screen screen(layer.gate.view(), nullptr);
  EXPECT_EQ(message({layer.gate.view(), screen}), "no error");
  EXPECT_EQ(message({layer.gate.view(), Screen(other.gate.view(), nullptr)}),
            "twell::ffn: screen: expected that of [32, 8], got that of [33, 8]");
  ConstMatrixView without_data = layer.gate.view();
  without_data.data = nullptr;
  EXPECT_EQ(message({without_data, screen}), "twell::ffn: gate: data is null");
}

// At an element's address; others are refused where they come in.
TEST(Screen, BorrowedMemoryIsAligned) {
  const Layer<float> layer({1, 8, 16, false});
  std::vector<std::byte> memory(screen_bytes(16, 8) + 128);
  auto* aligned = memory.data();
  while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
  make_screen(layer.gate.view(), nullptr, aligned);
  EXPECT_EQ(Screen::borrow(aligned, 16, 8).data(), aligned);
  EXPECT_THROW(make_screen(layer.gate.view(), nullptr, aligned + 2), Error);
  EXPECT_THROW(Screen::borrow(aligned + 33, 16, 8), Error);
  EXPECT_THROW(Screen::borrow(nullptr, 16, 8), Error);
}

}  // namespace
}  // namespace twell
