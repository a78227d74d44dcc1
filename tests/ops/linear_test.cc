// y = x Wᵀ + b on every tier against fp64.
#include "twell/linear.h"

#include "tests/ops/ffn_fixture.h"
#include "tests/support/message_of.h"
#include "twell/status.h"

namespace twell {
namespace {

using test::message_of;

enum class Storage : std::uint8_t { packed, packed_with_bias, as_stored };

// x and W of T, y of Y.
template <class T, class Y>
void check(Context& context, std::int64_t rows, std::int64_t depth, std::int64_t outputs,
           Storage storage) {
  const bool with_bias = storage == Storage::packed_with_bias;
  SCOPED_TRACE(std::string(name_of(context.tier())) + " M=" + std::to_string(rows) +
               " D=" + std::to_string(depth) + " N=" + std::to_string(outputs));
  test::Layer<T> layer({rows, depth, outputs, true, {}, 0.0F});
  const auto bias = test::random_matrix<T>(1, outputs, 9, 1.0F);
  test::TestMatrix<Y> y(rows, outputs, 5);
  if (storage == Storage::as_stored) {
    linear_as_stored(context, std::as_const(layer.x).view(), std::as_const(layer.gate).view(),
                     y.view());
  } else {
    linear(context, std::as_const(layer.x).view(), layer.packed().view(),
           with_bias ? bias.view().data : nullptr, y.view());
  }
  test::expect_linear(layer, y, with_bias ? &bias : nullptr);
}

template <class Types>
class LinearTest : public testing::Test {};
using Types =
    testing::Types<std::pair<bf16, bf16>, std::pair<float, float>, std::pair<bf16, float>>;
TYPED_TEST_SUITE(LinearTest, Types);

TYPED_TEST(LinearTest, TailSizes) {
  using X = typename TypeParam::first_type;
  using Y = typename TypeParam::second_type;
  for (CpuTier tier : available_cpu_tiers()) {
    for (int threads : {1, 3, 16}) {
      Context context({.threads = threads, .tier = tier});
      for (Storage storage : {Storage::packed, Storage::packed_with_bias, Storage::as_stored}) {
        for (std::int64_t rows : {0, 1, 2, 5, 16, 17, 1100}) {
          check<X, Y>(context, rows, 70, 90, storage);
        }
        for (std::int64_t depth : {1, 2, 31, 33, 257}) {
          check<X, Y>(context, 7, depth, 48, storage);
        }
        for (std::int64_t outputs : {1, 15, 17, 255, 257, 600}) {
          check<X, Y>(context, 9, 64, outputs, storage);
        }
        check<X, Y>(context, 4102, 5, 18, storage);   // more than are taken at a time
        check<X, Y>(context, 20, 4200, 48, storage);  // blocks of inputs, of few rows
        check<X, Y>(context, 40, 600, 48, storage);   // and of many
      }
    }
  }
}

TEST(Linear, ErrorsNameTheArgument) {
  Context context({.threads = 1, .tier = {}});
  test::Layer<bf16> layer({4, 32, 64});
  test::TestMatrix<bf16> y(4, 63);
  const ConstMatrixView x = std::as_const(layer.x).view();
  EXPECT_EQ(message_of([&] { linear(context, x, layer.packed().view(), nullptr, y.view()); }),
            "twell::linear: y: expected bf16 [4, 64], got bf16 [4, 63]");
}

TEST(Linear, RefusesF16) {
  Context context({.threads = 1, .tier = {}});
  test::Layer<bf16> layer({4, 32, 64});
  test::TestMatrix<bf16> y(4, 64);
  const auto f16 = [](auto view) {
    view.dtype = DType::f16;
    return view;
  };
  const ConstMatrixView x = std::as_const(layer.x).view();
  const ConstMatrixView weight = std::as_const(layer.gate).view();
  EXPECT_EQ(
      message_of([&] { linear(context, f16(x), layer.packed().view(), nullptr, f16(y.view())); }),
      "twell::linear: x: expected bf16 [4, 32], got f16 [4, 32]");
  EXPECT_EQ(message_of([&] { linear_as_stored(context, f16(x), f16(weight), f16(y.view())); }),
            "twell::linear_as_stored: weight: expected bf16, f32 or codes, got f16");
}

}  // namespace
}  // namespace twell
