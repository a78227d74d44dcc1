// A random layer with a chosen density, its packed weights and its fp64 reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "kernels/ref/ref.h"
#include "tests/support/bounds.h"
#include "tests/support/matrix.h"
#include "tests/support/remembered.h"
#include "twell/int4.h"
#include "twell/steps.h"

namespace twell::test {

struct Case {
  std::int64_t tokens, depth, neurons;
  bool gated = true;
  ActivationSpec activation = {};
  // Shift of the gate before the activation, in standard deviations: 2.5 leaves 0.6 % active, 0
  // half, -8 everything.
  float shift = 1.5F;
};

inline std::string describe(const Case& c) {
  return "M=" + std::to_string(c.tokens) + " D=" + std::to_string(c.depth) +
         " H=" + std::to_string(c.neurons) + (c.gated ? " gated " : " plain ") +
         name_of(c.activation.kind) + " shift " + std::to_string(c.shift);
}

// Weights, with the memory of what was prepared for them.
struct OwnedWeights : FfnWeights {
  std::optional<PackedWeight> packed;
  std::optional<Screen> made;  // the screen
};

// Numbers as codes, whose scales have so few bits that every product is exact in f32.
class Codes {
 public:
  Codes() = default;
  // Makes codes of `numbers`, and of these what the codes stand for.
  Codes(TestMatrix<float>& numbers, ScaledBy by)
      : rows_(numbers.rows()),
        cols_(numbers.cols()),
        stride_(numbers.view().row_stride),
        by_(by),
        codes_(static_cast<std::size_t>(rows_ * stride_), std::int8_t{-128}),
        scales_(static_cast<std::size_t>(by == ScaledBy::row ? rows_ : cols_)) {
    const auto each = [&](auto f) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        for (std::int64_t c = 0; c < cols_; ++c) {
          f(r, c, scales_[static_cast<std::size_t>(by == ScaledBy::row ? r : c)]);
        }
      }
    };
    each([&](std::int64_t r, std::int64_t c, float& scale) {
      const float number = numbers.value(r, c);
      scale = std::max(scale, std::abs(number) / (number > 0 ? 127 : 128));
    });
    for (float& scale : scales_) scale = static_cast<float>(bf16(scale));
    each([&](std::int64_t r, std::int64_t c, float scale) {
      const float code = scale == 0 ? 0 : std::nearbyint(numbers.value(r, c) / scale);
      codes_[static_cast<std::size_t>(r * stride_ + c)] = static_cast<std::int8_t>(code);
      numbers.set(r, c, code * scale);
    });
  }
  WeightView view() const {
    return WeightView::codes(WeightType::int8, codes_.data(), rows_, cols_, stride_, scales_.data(),
                             by_);
  }

 private:
  std::int64_t rows_ = 0, cols_ = 0, stride_ = 0;
  ScaledBy by_ = ScaledBy::row;
  std::vector<std::int8_t> codes_;
  std::vector<float> scales_;
};

// The same in blocks of int4; a multiple of 32 columns.
struct Int4 {};
class Int4Codes {
 public:
  Int4Codes() = default;
  explicit Int4Codes(TestMatrix<float>& numbers)
      : cols_(numbers.cols()),
        blocks_(static_cast<std::size_t>(bytes_of(WeightType::int4, numbers.rows() * cols_))),
        scales_(static_cast<std::size_t>(numbers.rows())) {
    std::vector<std::int8_t> codes(static_cast<std::size_t>(cols_));
    std::vector<float> groups(static_cast<std::size_t>(cols_ / kInt4Group));
    for (std::int64_t r = 0; r < numbers.rows(); ++r) {
      for (std::int64_t first = 0; first < cols_; first += kInt4Group) {
        float largest = 1e-4F;
        for (std::int64_t c = first; c < first + kInt4Group; ++c) {
          largest = std::max(largest, std::abs(numbers.value(r, c)));
        }
        int exponent = 0;
        const float mantissa = std::frexp(largest / 7, &exponent);
        const float scale = std::ldexp(std::ceil(mantissa * 32), exponent - 5);
        groups[static_cast<std::size_t>(first / kInt4Group)] = scale;
        for (std::int64_t c = first; c < first + kInt4Group; ++c) {
          const float code = std::nearbyint(numbers.value(r, c) / scale);
          // -8 too, which the largest number alone never is.
          const float used = code == -7 && c % 2 == 0 ? -8 : code;
          codes[static_cast<std::size_t>(c)] = static_cast<std::int8_t>(used);
          numbers.set(r, c, used * scale);
        }
      }
      EXPECT_TRUE(make_int4_row(codes.data(), groups.data(), cols_,
                                blocks_.data() + bytes_of(WeightType::int4, r * cols_),
                                scales_.data() + r));
    }
  }
  WeightView view() const {
    return WeightView::codes(WeightType::int4, blocks_.data(), std::ssize(scales_), cols_, cols_,
                             scales_.data());
  }

 private:
  std::int64_t cols_ = 0;
  std::vector<std::uint8_t> blocks_;
  std::vector<float> scales_;
};

// x and y of T, weights of W. Of codes (int8, or Int4 with a down of int8) gate, up and down are
// the numbers they stand for, after settle(); of Int4 x is as many inputs wide as make whole
// blocks.
template <class T, class W = T>
class Layer {
 public:
  static constexpr bool kInt4 = std::is_same_v<W, Int4>;
  static constexpr bool kCodes = std::is_same_v<W, std::int8_t> || kInt4;
  using Number = std::conditional_t<kCodes, float, W>;
  using OfGate = std::conditional_t<kInt4, Int4Codes, Codes>;

  explicit Layer(const Case& asked, unsigned seed = 1) : Layer(in_blocks(asked), seed, 0) {}
  Layer(const Case& c, unsigned seed, int /*in_blocks*/)
      : shape(c),
        x(random_matrix<T>(c.tokens, c.depth, seed, 1.0F, 3)),
        gate(random_matrix<Number>(c.neurons, c.depth, seed + 1, scale(c.depth))),
        up(random_matrix<Number>(c.neurons, c.depth, seed + 2, scale(c.depth), 1)),
        down(random_matrix<Number>(c.neurons, c.depth, seed + 3, scale(c.neurons), 2)) {
    // One input is the same for all tokens: its weight shifts the gate.
    for (std::int64_t r = 0; r < c.tokens; ++r) x.set(r, 0, 1.0F);
    for (std::int64_t n = 0; n < c.neurons; ++n) gate.set(n, 0, -c.shift);
    settle();
  }

  // After a change of weights.
  void settle() {
    if constexpr (kInt4) {
      gate_codes_ = Int4Codes(gate);
      up_codes_ = Int4Codes(up);
    } else if constexpr (kCodes) {
      gate_codes_ = Codes(gate, ScaledBy::row);
      up_codes_ = Codes(up, ScaledBy::row);
    }
    if constexpr (kCodes) down_codes_ = Codes(down, ScaledBy::column);
  }
  WeightView gate_view() const { return view_of(gate, gate_codes_); }
  PackedWeight packed() const { return PackedWeight(gate_view()); }
  OwnedWeights weights() const {
    OwnedWeights out{as_stored(), packed(), {}};
    out.gate = out.packed->view();
    return out;
  }
  // The same by way of a screen.
  OwnedWeights screened(const float* axis = nullptr) const {
    OwnedWeights out{as_stored(), {}, Screen(gate.view(), axis)};
    out.screen = out.made->view();
    return out;
  }

  Case shape;
  TestMatrix<T> x;
  TestMatrix<Number> gate, up, down;

 private:
  static Case in_blocks(Case c) {
    if (kInt4) c.depth = (c.depth + kInt4Group - 1) / kInt4Group * kInt4Group;
    return c;
  }
  static float scale(std::int64_t n) { return 1.0F / std::sqrt(static_cast<float>(n)); }
  template <class Made>
  static WeightView view_of(const TestMatrix<Number>& numbers, const Made& codes) {
    if constexpr (kCodes) {
      return codes.view();
    } else {
      return numbers.view();
    }
  }
  FfnWeights as_stored() const {
    FfnWeights weights = {gate_view(), {}, view_of(down, down_codes_)};
    if (shape.gated) weights.up = view_of(up, up_codes_);
    return weights;
  }

  OfGate gate_codes_, up_codes_;
  Codes down_codes_;
};

// A layer whose token r fires exactly the neurons with fires(r, n): its input is the unit vector r,
// beside `extra` random inputs that the gate does not see and up does.
template <class T, class W = T, class Fires>
Layer<T, W> layer_that_fires(std::int64_t tokens, std::int64_t neurons, bool gated, Fires fires,
                             std::int64_t extra = 24) {
  Layer<T, W> layer({tokens, tokens + extra, neurons, gated});
  for (std::int64_t r = 0; r < tokens; ++r) {
    for (std::int64_t k = 0; k < tokens; ++k) layer.x.set(r, k, r == k ? 1.0F : 0.0F);
  }
  for (std::int64_t n = 0; n < neurons; ++n) {
    for (std::int64_t k = 0; k < layer.gate.cols(); ++k) {
      const float size = 0.5F + std::abs(layer.gate.value(n, k));
      layer.gate.set(n, k, k >= tokens ? 0.0F : fires(k, n) ? size : -size);
    }
  }
  layer.settle();
  return layer;
}

inline bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Every element of the packed activation against the fp64 definition.
template <class T, class W>
void expect_activation(const TwellMatrix& packed, const TestMatrix<T>& x,
                       const TestMatrix<W>& weight, const ActivationSpec& activation) {
  validate(packed);
  TestMatrix<T> dense(packed.layout().rows, packed.layout().cols);
  unpack(packed, dense.view());
  const ref::Matrix x64 = ref::widen(x.view());
  const ref::Matrix w64 = ref::widen(weight.view());
  static Remembered<ref::Result> sums;
  const ref::Result& exact = sums.of({&x64, &w64}, [&] {
    ref::Result out = ref::gemm_relu_twell(x64, w64, {Activation::relu, 0.0F});
    for (std::int64_t r = 0; r < x64.rows; ++r) {
      for (std::int64_t c = 0; c < w64.rows; ++c) {
        double& sum = out.value.at(r, c) = 0.0;  // itself, without an activation
        for (std::int64_t k = 0; k < x64.cols; ++k) sum += x64.at(r, k) * w64.at(c, k);
      }
    }
    return out;
  });
  for (std::int64_t r = 0; r < dense.rows(); ++r) {
    for (std::int64_t c = 0; c < dense.cols(); ++c) {
      const double sum = exact.value.at(r, c);
      const double got = dense.value(r, c);
      if (std::isnan(sum) || std::isinf(sum)) {
        ASSERT_TRUE(same(got, ref::activate(sum, activation))) << r << "," << c << ": " << got;
        continue;
      }
      const double delta =
          accumulation_bound(static_cast<double>(x.cols()), exact.magnitude.at(r, c));
      // The activation is monotonic: the result lies between those of the interval's ends.
      const double low = ref::activate(sum - delta, activation);
      const double high = ref::activate(sum + delta, activation);
      // Squaring in f32 rounds once more.
      ASSERT_GE(got, low - 1.01 * rounding_bound<T>(low) - std::ldexp(std::abs(low), -24))
          << r << "," << c;
      ASSERT_LE(got, high + 1.01 * rounding_bound<T>(high) + std::ldexp(std::abs(high), -24))
          << r << "," << c;
    }
  }
}

// Σ |h||Wd|, h = g ⊙ u: what rounding h to its dtype errs relative to.
inline ref::Matrix hidden_magnitude(const ref::Matrix& x, const ref::Matrix& g,
                                    const ref::Matrix* up, const ref::Matrix& down) {
  ref::Matrix h = g;
  for (std::int64_t r = 0; up != nullptr && r < g.rows; ++r) {
    for (std::int64_t n = 0; n < g.cols; ++n) {
      double u = 0.0;
      for (std::int64_t k = 0; g.at(r, n) != 0.0 && k < x.cols; ++k) {
        u += x.at(r, k) * up->at(n, k);
      }
      h.at(r, n) *= u;
    }
  }
  return ref::twell_spmm(h, down).magnitude;
}

// y against the fp64 definition of up and down applied to the packed activation as it is.
// hidden_rounded: hot neurons' h may have been rounded to bf16 before down.
template <class T, class W>
void expect_output(const TwellMatrix& packed, const Layer<T, W>& layer, const TestMatrix<T>& y,
                   bool hidden_rounded = false) {
  TestMatrix<T> dense(packed.layout().rows, packed.layout().cols);
  unpack(packed, dense.view());
  const ref::Matrix g = ref::widen(dense.view());
  const ref::Matrix x = ref::widen(layer.x.view());
  const ref::Matrix up = ref::widen(layer.up.view());
  const ref::Matrix down = ref::widen(layer.down.view());
  static Remembered<ref::Result> gated, plain;
  const ref::Result& exact =
      layer.shape.gated
          ? gated.of({&x, &g, &up, &down}, [&] { return ref::twell_gated_ffn(x, g, up, down); })
          : plain.of({&g, &down}, [&] { return ref::twell_spmm(g, down); });
  const bool rounded = hidden_rounded && dtype_of<T>::value == DType::bf16 && layer.shape.gated;
  static Remembered<ref::Matrix> magnitudes;
  const ref::Matrix none;
  const ref::Matrix& hidden =
      rounded
          ? magnitudes.of({&x, &g, &up, &down}, [&] { return hidden_magnitude(x, g, &up, down); })
          : none;
  for (std::int64_t r = 0; r < y.rows(); ++r) {
    const auto terms =
        static_cast<double>(packed.row_nnz(r) + (layer.shape.gated ? layer.shape.depth : 0) + 2);
    for (std::int64_t c = 0; c < y.cols(); ++c) {
      const double expected = exact.value.at(r, c);
      const double got = y.value(r, c);
      if (!std::isfinite(expected)) {
        ASSERT_TRUE(same(got, expected)) << r << "," << c << ": " << got << " for " << expected;
        continue;
      }
      double bound = accumulation_bound(terms, exact.magnitude.at(r, c));
      if (rounded) bound += rounding_bound<T>(hidden.at(r, c));
      ASSERT_NEAR(got, expected, bound + 1.01 * rounding_bound<T>(std::abs(expected) + bound))
          << r << "," << c;
    }
  }
}

// y = x Wᵀ (+ bias) of the gate's numbers, each y within what f32 sums and one rounding of it
// allow.
template <class T, class W, class Y>
void expect_linear(const Layer<T, W>& layer, const TestMatrix<Y>& y,
                   const TestMatrix<T>* bias = nullptr) {
  const TestMatrix<T>& x = layer.x;
  for (std::int64_t r = 0; r < y.rows(); ++r) {
    for (std::int64_t n = 0; n < y.cols(); ++n) {
      double expected = bias != nullptr ? bias->value(0, n) : 0.0;
      double magnitude = std::abs(expected);
      for (std::int64_t k = 0; k < x.cols(); ++k) {
        const double term = static_cast<double>(x.value(r, k)) * layer.gate.value(n, k);
        expected += term;
        magnitude += std::abs(term);
      }
      const double bound = accumulation_bound(static_cast<double>(x.cols() + 1), magnitude);
      ASSERT_NEAR(y.value(r, n), expected,
                  bound + 1.01 * rounding_bound<Y>(std::abs(expected) + bound))
          << r << "," << n;
    }
  }
}

// What a call counted against the activation itself.
inline void expect_counts(const FfnCounts& counts, const TwellMatrix& packed) {
  const TwellLayout& layout = packed.layout();
  ASSERT_EQ(counts.rows(), layout.rows);
  EXPECT_EQ(counts.nnz(), packed.nnz());
  std::int64_t most = 0;
  std::vector<std::int64_t> fired(static_cast<std::size_t>(layout.cols));
  for (std::int64_t r = 0; r < layout.rows; ++r) {
    EXPECT_EQ(counts.row_nnz[static_cast<std::size_t>(r)], packed.row_nnz(r));
    most = std::max(most, packed.row_nnz(r));
    for (std::int64_t t = 0; t < layout.tiles(); ++t) {
      for (std::int32_t i = 0; i < packed.count(r, t); ++i) {
        const std::uint32_t column = layout.dtype == DType::f32
                                         ? packed.slots<TwellSlot32>(r, t)[i].column
                                         : packed.slots<TwellSlot16>(r, t)[i].column;
        ++fired[static_cast<std::size_t>(t * layout.tile) + column];
      }
    }
  }
  EXPECT_EQ(counts.max_row_nnz(), most);
  EXPECT_EQ(counts.neuron_nnz, fired);
  EXPECT_EQ(counts.active_neurons(),
            std::count_if(fired.begin(), fired.end(), [](std::int64_t n) { return n > 0; }));
}

// gemm_relu_twell, then up and down from the packed gate, then the fused layer: each against the
// definition.
template <class T, class W>
void check_layer(Context& context, Layer<T, W>& layer, std::int32_t tile = 256,
                 std::int32_t capacity = 32) {
  const Case& c = layer.shape;
  SCOPED_TRACE(describe(c) + " on " + name_of(context.tier()) + ", threads " +
               std::to_string(context.threads()) + ", tile " + std::to_string(tile) + "/" +
               std::to_string(capacity));
  TwellMatrix packed({c.tokens, c.neurons, tile, capacity, dtype_of<T>::value});
  TestMatrix<T> y(c.tokens, c.depth, 5);
  const TestMatrix<T>& x = layer.x;
  layer.settle();
  const OwnedWeights weights = layer.weights();
  gemm_relu_twell(context, x.view(), weights.gate, c.activation, packed);
  expect_activation(packed, x, layer.gate, c.activation);
  if (c.gated) {
    twell_gated_ffn(context, x.view(), packed, weights.up.value(), weights.down, y.view());
  } else {
    twell_spmm(context, packed, weights.down, y.view());
  }
  expect_output(packed, layer, y);

  TestMatrix<T> fused(c.tokens, c.depth, 5);
  FfnCounts counts;
  counts.candidates = counts.neuron_nnz.emplace_back(7);  // of another call
  ffn(context, x.view(), weights, c.activation, fused.view(), &counts);
  expect_output(packed, layer, fused, true);
  expect_counts(counts, packed);
  // Same input, same plan: same bits.
  TestMatrix<T> again(c.tokens, c.depth, 5);
  ffn(context, x.view(), weights, c.activation, again.view());
  for (std::int64_t r = 0; r < c.tokens; ++r) {
    ASSERT_EQ(std::memcmp(&fused.at(r, 0), &again.at(r, 0),
                          static_cast<std::size_t>(c.depth) * sizeof(T)),
              0);
  }
}

// f(context) on every tier of this machine, with each way to treat what fires: neurons are
// multiplied densely from so large a share of a block's rows on, or from where the plan says.
using HotShares = std::initializer_list<std::optional<double>>;
template <class F>
void on_every_path(HotShares shares, int threads, F f) {
  for (const CpuTier tier : available_cpu_tiers()) {
    for (const std::optional<double> share : shares) {
      SCOPED_TRACE(std::string(name_of(tier)) + ", hot share " +
                   (share ? std::to_string(*share) : "of the plan"));
      Context context({.threads = threads, .tier = tier, .hot_share = share});
      f(context);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// check_layer() on every tier of this machine, with every way to treat what fired and the gate from
// its screen too; `nnz` of it. The gate's values are exact, as those of layer_that_fires().
template <class T, class W>
void check_every_path(Layer<T, W>& layer, std::int64_t nnz) {
  on_every_path({{}, 0.0, 2.0}, 2, [&](Context& context) {
    check_layer(context, layer);
    TestMatrix<T> y(layer.shape.tokens, layer.shape.depth);
    FfnCounts counts;
    ffn(context, std::as_const(layer.x).view(), layer.weights(), layer.shape.activation, y.view(),
        &counts);
    EXPECT_EQ(counts.nnz(), nnz);
    if (Layer<T, W>::kCodes) return;  // no screen is made of them
    const Case& c = layer.shape;
    TwellMatrix packed({c.tokens, c.neurons, 256, 32, dtype_of<T>::value});
    gemm_relu_twell(context, std::as_const(layer.x).view(), layer.packed().view(), c.activation,
                    packed);
    ffn(context, std::as_const(layer.x).view(), layer.screened(), c.activation, y.view(), &counts);
    EXPECT_EQ(counts.nnz(), nnz);
    EXPECT_GE(counts.candidates, nnz);
    expect_output(packed, layer, y, true);
  });
}

}  // namespace twell::test
