// A random layer on the device, and checks of each operation against the fp64 definition.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "cuda/tests/support/device_buffer.h"
#include "cuda/tests/support/half.h"
#include "kernels/ref/ref.h"
#include "tests/support/bounds.h"
#include "twell/cuda.h"

namespace twell::test {

// Tensor cores align a step's products and the running sum to the largest of them and cut off what
// lies below its last place (measured on Volta to Hopper: Fasi et al., PeerJ CS 2021): up to 2u for
// each product and 2u for each sum, where rounding would err by u.
inline double tensor_core_bound(double terms, double magnitude) {
  return accumulation_bound(4.0 * terms, magnitude);
}

// Half a unit in the last place, at least half the smallest denormal.
template <class T>
double half_ulp(double value) {
  if constexpr (std::is_same_v<T, Half>) {
    return std::ldexp(std::abs(value), -11) + std::ldexp(1.0, -25);
  } else {
    return rounding_bound<T>(value);
  }
}
// What is not below rounds to infinity.
template <class T>
constexpr double kInfiniteFrom = std::is_same_v<T, Half> ? 65520.0 : 0x1.ffp127;

template <class T>
ref::Matrix widened(const TestMatrix<T>& m) {
  ref::Matrix out(m.rows(), m.cols());
  for (std::int64_t r = 0; r < m.rows(); ++r) {
    for (std::int64_t c = 0; c < m.cols(); ++c) out.at(r, c) = m.value(r, c);
  }
  return out;
}

struct CudaCase {
  std::int64_t tokens, width, neurons;
  bool gated = true;
  ActivationSpec activation = {};
  float shift = 1.5F;        // of the gate before the activation, in standard deviations
  std::int64_t padding = 0;  // elements after each row
};

inline std::string describe(const CudaCase& c) {
  return "M=" + std::to_string(c.tokens) + " D=" + std::to_string(c.width) +
         " H=" + std::to_string(c.neurons) + (c.gated ? " gated " : " plain ") +
         name_of(c.activation.kind) + " shift " + std::to_string(c.shift) + " padding " +
         std::to_string(c.padding);
}

template <class T>
class CudaLayer {
 public:
  explicit CudaLayer(const CudaCase& c, unsigned seed = 1)
      : shape(c),
        x(random_matrix<T>(c.tokens, c.width, seed, 1.0F, c.padding)),
        gate(random_matrix<T>(c.neurons, c.width, seed + 1, scale(c.width), c.padding)),
        up(random_matrix<T>(c.neurons, c.width, seed + 2, scale(c.width), c.padding)),
        down(random_matrix<T>(c.neurons, c.width, seed + 3, scale(c.neurons), c.padding)) {
    // One input is the same for all tokens: its weight shifts the gate.
    for (std::int64_t r = 0; r < c.tokens; ++r) x.set(r, 0, 1.0F);
    for (std::int64_t n = 0; n < c.neurons; ++n) gate.set(n, 0, -c.shift);
  }

  cuda::Problem problem() const {
    cuda::Problem p;
    p.tokens = shape.tokens;
    p.width = shape.width;
    p.neurons = shape.neurons;
    p.dtype = dtype_of<T>::value;
    p.gated = shape.gated;
    p.aligned = shape.width % 8 == 0 && shape.padding % 8 == 0;
    p.activation = shape.activation.kind;
    return p;
  }

  CudaCase shape;
  TestMatrix<T> x, gate, up, down;

 private:
  static float scale(std::int64_t n) { return 1.0F / std::sqrt(static_cast<float>(n)); }
};

// A packed activation in device memory.
struct DevicePacked {
  explicit DevicePacked(const TwellLayout& layout)
      : counts(cuda::count_words(layout)),
        slots(cuda::slot_words(layout)),
        overflow(cuda::overflow_words(layout)),
        view{layout, counts.data(), slots.data(), overflow.data()} {}

  DeviceBuffer<std::int32_t> counts;
  DeviceBuffer<std::uint32_t> slots;
  DeviceBuffer<std::uint32_t> overflow;
  cuda::DeviceTwellView view;
};

template <class T>
double slot_value(std::uint32_t slot) {
  const auto bits = static_cast<std::uint16_t>(slot >> 16);
  if constexpr (std::is_same_v<T, Half>) {
    return widen_half(bits);
  } else {
    return static_cast<float>(bf16::from_bits(bits));
  }
}

// The dense matrix; a violated rule of the format is a failure of the test.
template <class T>
ref::Matrix unpacked(const DevicePacked& packed) {
  const TwellLayout& layout = packed.view.layout;
  ref::Matrix dense(layout.rows, layout.cols);
  const auto counts = packed.counts.read();
  const auto slots = packed.slots.read();
  const auto overflow = packed.overflow.read();
  const std::int64_t tiles = layout.tiles();
  for (std::int64_t place = 0; place < layout.rows * tiles; ++place) {
    const std::int64_t first = place % tiles * layout.tile;
    const std::int64_t width = std::min<std::int64_t>(layout.tile, layout.cols - first);
    const std::int32_t count = counts[static_cast<std::size_t>(place)];
    if (count < 0 || count > width) {
      ADD_FAILURE() << "count " << count << " of tile " << place;
      return dense;
    }
    const std::uint32_t* stored = slots.data() + place * layout.capacity;
    if (count > layout.capacity) {
      if (stored[0] >= counts.size()) {
        ADD_FAILURE() << "record " << stored[0] << " of tile " << place;
        return dense;
      }
      stored = overflow.data() + std::int64_t{stored[0]} * layout.tile;
    }
    std::int64_t last = -1;
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int64_t column = stored[i] & 0xffffU;
      const double value = slot_value<T>(stored[i]);
      if (column <= last || column >= width || value == 0.0) {
        ADD_FAILURE() << "slot " << i << " of tile " << place << ": column " << column << " after "
                      << last << ", value " << value;
        return dense;
      }
      dense.at(place / tiles, first + column) = value;
      last = column;
    }
  }
  return dense;
}

// An element's place, for messages.
struct At {
  std::int64_t row, col;
};
inline std::ostream& operator<<(std::ostream& out, At at) {
  return out << "(" << at.row << ", " << at.col << ")";
}

// Rounding `value` to T, to within `error` before and half a unit after.
template <class T>
void expect_rounded(double got, double low, double high, double error, At where) {
  low -= error;
  high += error;
  if (high + half_ulp<T>(high) >= kInfiniteFrom<T> && std::isinf(got) && got > 0) return;
  if (low - half_ulp<T>(low) <= -kInfiniteFrom<T> && std::isinf(got) && got < 0) return;
  ASSERT_GE(got, low - 1.01 * half_ulp<T>(low)) << where;
  ASSERT_LE(got, high + 1.01 * half_ulp<T>(high)) << where;
}

inline bool same_special(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// `bound`: of an error of a sum of so many terms.
template <class T>
void expect_activation(const ref::Matrix& got, const CudaLayer<T>& layer,
                       double (*bound)(double, double) = tensor_core_bound) {
  const ref::Matrix x = widened(layer.x);
  const ref::Matrix w = widened(layer.gate);
  for (std::int64_t r = 0; r < got.rows; ++r) {
    for (std::int64_t c = 0; c < got.cols; ++c) {
      double sum = 0.0;
      double magnitude = 0.0;
      for (std::int64_t k = 0; k < x.cols; ++k) {
        sum += x.at(r, k) * w.at(c, k);
        magnitude += std::abs(x.at(r, k) * w.at(c, k));
      }
      const ActivationSpec& activation = layer.shape.activation;
      if (!std::isfinite(sum)) {
        ASSERT_TRUE(same_special(got.at(r, c), ref::activate(sum, activation))) << At{r, c};
        continue;
      }
      const double delta = bound(static_cast<double>(x.cols), magnitude);
      const double low = ref::activate(sum - delta, activation);
      const double high = ref::activate(sum + delta, activation);
      // Squaring in f32 rounds once more.
      expect_rounded<T>(got.at(r, c), low, high, std::ldexp(high, -24), At{r, c});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// y against up and down of the activation as it was packed. `more`: what the error of an element
// may be beyond that of sums in f32.
inline double nothing_more(std::int64_t, std::int64_t) { return 0.0; }
template <class T, class More = double (*)(std::int64_t, std::int64_t)>
void expect_output(const DeviceMatrixOf<T>& y, const ref::Matrix& gate, const CudaLayer<T>& layer,
                   More more = nothing_more) {
  const ref::Matrix down = widened(layer.down);
  const ref::Result exact =
      layer.shape.gated ? ref::twell_gated_ffn(widened(layer.x), gate, widened(layer.up), down)
                        : ref::twell_spmm(gate, down);
  const auto values = y.read();
  for (std::int64_t r = 0; r < gate.rows; ++r) {
    double terms = layer.shape.gated ? static_cast<double>(layer.shape.width) + 2 : 2;
    for (std::int64_t n = 0; n < gate.cols; ++n) terms += gate.at(r, n) != 0.0 ? 1 : 0;
    for (std::int64_t c = 0; c < down.cols; ++c) {
      const double expected = exact.value.at(r, c);
      const double got = y.value(values, r, c);
      if (!std::isfinite(expected)) {
        ASSERT_TRUE(same_special(got, expected)) << At{r, c} << " " << got << " for " << expected;
        continue;
      }
      expect_rounded<T>(got, expected, expected,
                        accumulation_bound(terms, exact.magnitude.at(r, c)) + more(r, c), At{r, c});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// The screen of a layer's gate, made on the device. axis: as many numbers as inputs, or none.
template <class T>
class DeviceScreenOf {
 public:
  explicit DeviceScreenOf(const CudaLayer<T>& layer, const std::vector<float>& axis = {})
      : memory_(cuda::screen_bytes(layer.shape.neurons, layer.shape.width)) {
    const DeviceMatrixOf<T> gate(layer.gate);
    const DeviceBuffer<float> on_device(axis);
    view =
        cuda::make_screen(gate.view(), on_device.data(), {memory_.data(), memory_.size()}, nullptr);
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<std::byte> read() const { return memory_.read(); }

  cuda::DeviceScreenView view;

 private:
  DeviceBuffer<std::byte> memory_;
};
template <class T>
std::vector<float> mean_of(const TestMatrix<T>& x) {
  std::vector<float> mean(static_cast<std::size_t>(x.cols()));
  for (std::int64_t r = 0; r < x.rows(); ++r) {
    for (std::int64_t k = 0; k < x.cols(); ++k) mean[static_cast<std::size_t>(k)] += x.value(r, k);
  }
  return mean;
}

// Runs gemm_relu_twell twice; checks the first against the definition and the second to be the same
// bits. Returns the dense activation.
template <class T>
ref::Matrix check_gemm(const cuda::GemmPlan& plan, const CudaLayer<T>& layer, std::int32_t capacity,
                       const cuda::DeviceScreenView& screen = {}) {
  SCOPED_TRACE(describe(layer.shape) + ", capacity " + std::to_string(capacity) + "; " +
               plan.to_string());
  const DeviceMatrixOf<T> x(layer.x);
  const DeviceMatrixOf<T> gate(layer.gate);
  const TwellLayout layout{layer.shape.tokens, layer.shape.neurons, plan.tile, capacity,
                           dtype_of<T>::value};
  DevicePacked packed(layout);
  DevicePacked again(layout);
  for (const DevicePacked* out : {&packed, &again}) {
    DeviceBuffer<std::byte> memory(plan.workspace_bytes);
    cuda::gemm_relu_twell(plan, x.view(), gate.view(), layer.shape.activation, out->view,
                          {memory.data(), memory.size()}, nullptr, screen);
  }
  TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  ref::Matrix dense = unpacked<T>(packed);
  // What a screen leaves is multiplied in f32.
  const bool screened = plan.shape == cuda::GemmShape::screen32x32;
  expect_activation(dense, layer, screened ? accumulation_bound : tensor_core_bound);
  EXPECT_EQ(packed.counts.read(), again.counts.read());
  // Words without a slot stay as they were, all bits set, in both.
  EXPECT_EQ(packed.slots.read(), again.slots.read());
  EXPECT_EQ(packed.overflow.read(), again.overflow.read());
  return dense;
}

// Packs `gate` on the host, as the format's definition has it.
template <class T>
void pack_to_device(const TestMatrix<T>& gate, const DevicePacked& packed) {
  const TwellLayout& layout = packed.view.layout;
  const std::int64_t tiles = layout.tiles();
  std::vector<std::int32_t> counts(cuda::count_words(layout));
  std::vector<std::uint32_t> slots(cuda::slot_words(layout), 0xffffffffU);
  std::vector<std::uint32_t> overflow(cuda::overflow_words(layout), 0xffffffffU);
  // Records in another order than the kernels write them: readers go by the number.
  auto record = static_cast<std::uint32_t>(counts.size());
  for (std::size_t place = 0; place < counts.size(); ++place) {
    const auto row = static_cast<std::int64_t>(place) / tiles;
    const std::int64_t first = static_cast<std::int64_t>(place) % tiles * layout.tile;
    std::vector<std::uint32_t> words;
    for (std::int64_t c = 0; c < layout.tile && first + c < layout.cols; ++c) {
      const std::uint16_t bits = gate.at(row, first + c).bits;
      if ((bits & 0x7fffU) != 0) {
        words.push_back(static_cast<std::uint32_t>(bits) << 16 | static_cast<std::uint32_t>(c));
      }
    }
    counts[place] = static_cast<std::int32_t>(words.size());
    std::uint32_t* to = slots.data() + place * static_cast<std::size_t>(layout.capacity);
    if (words.size() > static_cast<std::size_t>(layout.capacity)) {
      to[0] = --record;
      to = overflow.data() +
           static_cast<std::size_t>(record) * static_cast<std::size_t>(layout.tile);
    }
    std::copy(words.begin(), words.end(), to);
  }
  const auto upload = [](auto* to, const auto& from) {
    if (from.empty()) return;
    TWELL_CUDA_CHECK(
        cudaMemcpy(to, from.data(), from.size() * sizeof from[0], cudaMemcpyHostToDevice));
  };
  upload(packed.view.counts, counts);
  upload(packed.view.slots, slots);
  upload(packed.view.overflow, overflow);
}

// twell_gated_ffn or twell_spmm on the activation `gate`, in a layout of the given tile.
template <class T>
void check_gather(const cuda::GatherPlan& plan, const CudaLayer<T>& layer,
                  const TestMatrix<T>& gate, std::int32_t tile, std::int32_t capacity) {
  SCOPED_TRACE(describe(layer.shape) + ", tile " + std::to_string(tile) + "/" +
               std::to_string(capacity) + "; " + plan.to_string());
  const DevicePacked packed(
      {layer.shape.tokens, layer.shape.neurons, tile, capacity, dtype_of<T>::value});
  pack_to_device(gate, packed);
  const DeviceMatrixOf<T> x(layer.x);
  const DeviceMatrixOf<T> up(layer.up);
  const DeviceMatrixOf<T> down(layer.down);
  const TestMatrix<T> empty(layer.shape.tokens, layer.shape.width, layer.shape.padding);
  DeviceMatrixOf<T> y(empty);
  DeviceMatrixOf<T> again(empty);
  DeviceBuffer<std::byte> memory(plan.workspace_bytes(layer.shape.tokens));
  DeviceBuffer<std::int32_t> row_nnz(static_cast<std::size_t>(layer.shape.tokens));
  DeviceBuffer<std::int64_t> neuron_counts(
      std::vector<std::int64_t>(static_cast<std::size_t>(layer.shape.neurons), 5));
  const cuda::Workspace workspace{memory.data(), memory.size()};
  const cuda::DeviceStats stats{row_nnz.data(), neuron_counts.data()};
  for (DeviceMatrixOf<T>* out : {&y, &again}) {
    const cuda::DeviceStats seen = out == &y ? stats : cuda::DeviceStats{};
    if (layer.shape.gated) {
      cuda::twell_gated_ffn(plan, x.view(), packed.view, up.view(), down.view(),
                            out->mutable_view(), workspace, nullptr, seen);
    } else {
      cuda::twell_spmm(plan, packed.view, down.view(), out->mutable_view(), workspace, nullptr,
                       seen);
    }
  }
  TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  const ref::Matrix exact = widened(gate);
  expect_output(y, exact, layer);
  const auto first = y.read();
  const auto second = again.read();
  ASSERT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(T)), 0);
  // Statistics are exact.
  std::vector<std::int32_t> rows(static_cast<std::size_t>(layer.shape.tokens));
  std::vector<std::int64_t> neurons(static_cast<std::size_t>(layer.shape.neurons), 5);
  for (std::int64_t r = 0; r < exact.rows; ++r) {
    for (std::int64_t n = 0; n < exact.cols; ++n) {
      if (exact.at(r, n) == 0.0) continue;
      rows[static_cast<std::size_t>(r)] += 1;
      neurons[static_cast<std::size_t>(n)] += 1;
    }
  }
  EXPECT_EQ(row_nnz.read(), rows);
  EXPECT_EQ(neuron_counts.read(), neurons);
}

}  // namespace twell::test
