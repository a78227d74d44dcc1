// Attention of single queries on every tier against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/ref/ref.h"
#include "tests/support/bounds.h"
#include "tests/support/matrix.h"
#include "tests/support/message_of.h"
#include "twell/attention.h"
#include "twell/status.h"

namespace twell {
namespace {

using test::message_of;
using test::TestMatrix;

// How keys and values lie: [head, position, d], with room behind the last position of a head; or
// [position, head, d], as a projection leaves them.
enum class Layout : std::uint8_t { by_head, by_position };

template <class T>
struct Sequence {
  Sequence(const AttentionHeads& of, std::int64_t positions, std::int64_t d, Layout lay,
           unsigned seed)
      : heads(of),
        layout(lay),
        count(positions),
        q(test::random_matrix<T>(of.query, d, seed, 2.0F, 3)),
        y(of.query, d, 5),
        keys(make(d)),
        values(make(d)) {
    const auto k = test::random_matrix<T>(of.key_value * positions, d, seed + 1);
    const auto v = test::random_matrix<T>(of.key_value * positions, d, seed + 2);
    for (std::int64_t head = 0; head < of.key_value; ++head) {
      for (std::int64_t p = 0; p < positions; ++p) {
        for (std::int64_t i = 0; i < d; ++i) {
          keys.set(row(head, p), i, k.value(head * positions + p, i));
          values.set(row(head, p), i, v.value(head * positions + p, i));
        }
      }
    }
  }
  // All else is NaN.
  TestMatrix<T> make(std::int64_t d) const {
    return {heads.key_value * (count + (layout == Layout::by_head ? 3 : 0)), d, 2};
  }
  std::int64_t row(std::int64_t head, std::int64_t position) const {
    return layout == Layout::by_head ? head * (count + 3) + position
                                     : position * heads.key_value + head;
  }
  DecodeQuery query() {
    const auto first_head = [&](TestMatrix<T>& all) {
      ConstMatrixView view = std::as_const(all).view();
      view.rows = count;
      if (layout == Layout::by_position) view.row_stride *= heads.key_value;
      return view;
    };
    const auto apart = [&](TestMatrix<T>& all) { return row(1, 0) * all.view().row_stride; };
    return {q.view(), first_head(keys), first_head(values), apart(keys), apart(values), y.view()};
  }
  ref::Matrix of_head(const TestMatrix<T>& all, std::int64_t head) const {
    ref::Matrix out(count, q.cols());
    for (std::int64_t p = 0; p < count; ++p) {
      for (std::int64_t i = 0; i < q.cols(); ++i) out.at(p, i) = all.value(row(head, p), i);
    }
    return out;
  }

  AttentionHeads heads;
  Layout layout;
  std::int64_t count;
  TestMatrix<T> q, y, keys, values;
};

template <class T>
void expect_definition(const Sequence<T>& s) {
  const std::int64_t sharing = s.heads.query / s.heads.key_value;
  const std::int64_t d = s.q.cols();
  const auto terms = static_cast<double>(s.count);
  for (std::int64_t head = 0; head < s.heads.query; ++head) {
    ref::Matrix q(1, d);
    for (std::int64_t i = 0; i < d; ++i) q.at(0, i) = s.q.value(head, i);
    const ref::Attention exact = ref::decode_attention(q, s.of_head(s.keys, head / sharing),
                                                       s.of_head(s.values, head / sharing));
    // An error of at most e in all scores is a factor within exp(±2e) of each probability. An
    // exponential errs by 4 units, its argument of at most 86 by one of its own; both of them and
    // their sum go into numerator and denominator, which each part of the keys adds to once more.
    const double e = test::accumulation_bound(static_cast<double>(d) + 2, exact.scores.at(0, 0));
    const double relative = std::exp(2 * e) - 1 + test::accumulation_bound(2 * (terms + 96), 1.0);
    for (std::int64_t i = 0; i < d; ++i) {
      const double y = exact.y.value.at(0, i);
      const double bound = exact.y.magnitude.at(0, i) * relative + std::ldexp(terms, -120);
      ASSERT_NEAR(s.y.value(head, i), y,
                  bound + 1.01 * test::rounding_bound<T>(std::abs(y) + bound))
          << "head " << head << ", " << i;
    }
  }
}

template <class T>
std::vector<DecodeQuery> queries_of(std::vector<Sequence<T>>& sequences) {
  std::vector<DecodeQuery> out;
  for (Sequence<T>& s : sequences) out.push_back(s.query());
  return out;
}

template <class F>
void on_every_tier(F f) {
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const int threads : {1, 3, 16}) {
      SCOPED_TRACE(std::string(name_of(tier)) + " threads=" + std::to_string(threads));
      Context context({.threads = threads, .tier = tier});
      f(context);
    }
  }
}

template <class T>
class DecodeAttentionTest : public testing::Test {};
using Types = testing::Types<bf16, float>;
TYPED_TEST_SUITE(DecodeAttentionTest, Types);

TYPED_TEST(DecodeAttentionTest, IsTheDefinition) {
  const auto check = [](Context& context, const AttentionHeads& heads, std::int64_t positions,
                        std::int64_t d, Layout layout) {
    SCOPED_TRACE(std::to_string(heads.query) + "/" + std::to_string(heads.key_value) +
                 " heads of " + std::to_string(d) + ", " + std::to_string(positions));
    Sequence<TypeParam> s(heads, positions, d, layout, 7);
    const DecodeQuery query = s.query();
    decode_attention(context, heads, {&query, 1});
    expect_definition(s);
  };
  on_every_tier([&](Context& context) {
    for (const Layout layout : {Layout::by_head, Layout::by_position}) {
      for (const std::int64_t positions : {1, 2, 4, 15, 16, 17, 100, 511, 512, 513, 1300}) {
        check(context, {4, 2}, positions, 64, layout);
      }
      for (const std::int64_t d : {1, 3, 16, 24, 63, 65, 80, 128, 256}) {
        check(context, {2, 2}, 37, d, layout);
      }
      for (const AttentionHeads heads : {AttentionHeads{1, 1}, {6, 1}, {14, 2}, {32, 32}}) {
        check(context, heads, 70, 32, layout);
      }
    }
  });
}

TYPED_TEST(DecodeAttentionTest, SequencesAreEachAloneAndThreadsDoNotShow) {
  constexpr AttentionHeads kHeads = {6, 3};
  for (const CpuTier tier : available_cpu_tiers()) {
    std::vector<Sequence<TypeParam>> sequences, alone;
    for (const std::int64_t positions : {1, 1100, 40, 513}) {
      sequences.emplace_back(kHeads, positions, 40, Layout::by_head, positions);
      alone.push_back(sequences.back());
    }
    Context one({.threads = 1, .tier = tier});
    for (Sequence<TypeParam>& s : alone) {
      const DecodeQuery query = s.query();
      decode_attention(one, kHeads, {&query, 1});
      expect_definition(s);
    }
    for (const int threads : {1, 2, 5, 64}) {
      Context context({.threads = threads, .tier = tier});
      decode_attention(context, kHeads, queries_of(sequences));
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        for (std::int64_t head = 0; head < kHeads.query; ++head) {
          for (std::int64_t at = 0; at < 40; ++at) {
            ASSERT_EQ(sequences[i].y.value(head, at), alone[i].y.value(head, at))
                << name_of(tier) << " " << threads << " threads, sequence " << i;
          }
        }
      }
    }
  }
}

// One key far above the others, wherever it is, is all that counts; scores may be of any size.
TYPED_TEST(DecodeAttentionTest, LargeScoresChooseOneKey) {
  on_every_tier([](Context& context) {
    for (const std::int64_t chosen : {0, 600, 1029}) {
      for (const float size : {30.0F, 1e5F, 1e17F}) {
        Sequence<TypeParam> s({1, 1}, 1030, 64, Layout::by_head, 3);
        for (std::int64_t i = 0; i < 64; ++i) {
          s.q.set(0, i, size);
          for (std::int64_t p = 0; p < s.count; ++p) {
            s.keys.set(s.row(0, p), i, (p == chosen ? 1.0F : -1.0F) * size);
          }
        }
        const DecodeQuery query = s.query();
        decode_attention(context, s.heads, {&query, 1});
        for (std::int64_t i = 0; i < 64; ++i) {
          ASSERT_EQ(s.y.value(0, i), s.values.value(s.row(0, chosen), i));
        }
      }
    }
  });
}

// A score that is NaN or plus infinity makes its head NaN; minus infinity is a weight of zero, or
// NaN where all are.
TYPED_TEST(DecodeAttentionTest, NotANumberStaysInItsHead) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  on_every_tier([](Context& context) {
    for (const std::int64_t positions : {5, 530}) {
      for (const std::int64_t at : {std::int64_t{0}, positions - 1}) {
        for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity}) {
          Sequence<TypeParam> s({4, 2}, positions, 32, Layout::by_head, 3);
          for (std::int64_t head = 0; head < 4; ++head) s.q.set(head, 0, 1.0F);
          s.keys.set(s.row(1, at), 0, bad);
          const DecodeQuery query = s.query();
          decode_attention(context, s.heads, {&query, 1});
          for (std::int64_t i = 0; i < 32; ++i) {
            ASSERT_TRUE(std::isfinite(s.y.value(0, i)) && std::isfinite(s.y.value(1, i)));
            ASSERT_EQ(std::isnan(s.y.value(2, i)), bad != -kInfinity);
            ASSERT_EQ(std::isnan(s.y.value(3, i)), bad != -kInfinity);
          }
        }
      }
      Sequence<TypeParam> s({1, 1}, positions, 32, Layout::by_head, 3);
      s.q.set(0, 0, 1.0F);
      for (std::int64_t p = 0; p < positions; ++p) s.keys.set(s.row(0, p), 0, -kInfinity);
      const DecodeQuery query = s.query();
      decode_attention(context, s.heads, {&query, 1});
      ASSERT_TRUE(std::isnan(s.y.value(0, 0)));
    }
  });
}

TEST(Exponentials, AreWithinFourUnits) {
  std::vector<float> values(172000), out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = -static_cast<float>(i) * 0.0005F;  // 0 to more than -86
  }
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const Kernels& kernels = kernels_of(tier, dtype);
      out = values;
      const ExponentialSum sum = kernels.exponentials(out.data(), std::ssize(out));
      EXPECT_EQ(sum.largest, 0.0F);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double exact = std::exp(static_cast<double>(values[i]));
        ASSERT_NEAR(out[i], exact, 4 * std::ldexp(exact, -24)) << values[i];
      }
      for (std::int64_t count = 1; count < 40; ++count) {
        out.assign(static_cast<std::size_t>(count) + 1, 7.0F);
        out.back() = 99.0F;
        const ExponentialSum same = kernels.exponentials(out.data(), count);
        EXPECT_EQ(same.largest, 7.0F);
        EXPECT_EQ(same.sum, static_cast<float>(count));
        EXPECT_EQ(out.back(), 99.0F) << "what is not asked for is left alone";
      }
    }
  }
}

TEST(DecodeAttention, ErrorsNameTheArgument) {
  Context context({.threads = 1, .tier = {}});
  Sequence<bf16> s({4, 2}, 9, 16, Layout::by_head, 1);
  const auto message = [&](const AttentionHeads& heads, auto change) {
    DecodeQuery query = s.query();
    change(query);
    return message_of([&] { decode_attention(context, heads, {&query, 1}); });
  };
  EXPECT_EQ(message({4, 3}, [](DecodeQuery&) {}),
            "twell::decode_attention: heads: expected a multiple of the 3 heads of keys, got 4");
  EXPECT_EQ(message({6, 2}, [](DecodeQuery&) {}),
            "twell::decode_attention: q: expected bf16 [6, 16], got bf16 [4, 16]");
  EXPECT_EQ(message({4, 2}, [](DecodeQuery& query) { query.keys.rows = 0; }),
            "twell::decode_attention: keys: expected at least one position");
  EXPECT_EQ(message({4, 2}, [](DecodeQuery& query) { query.values.rows = 8; }),
            "twell::decode_attention: values: expected bf16 [9, 16], got bf16 [8, 16]");
  EXPECT_EQ(message({4, 2}, [](DecodeQuery& query) { query.y.dtype = DType::f32; }),
            "twell::decode_attention: y: expected bf16 [4, 16], got f32 [4, 16]");
  EXPECT_EQ(message({4, 2}, [](DecodeQuery&) {}), "");
  EXPECT_NO_THROW(decode_attention(context, {4, 2}, {}));
}

}  // namespace
}  // namespace twell
