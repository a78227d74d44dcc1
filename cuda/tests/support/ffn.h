// The whole layer against the fp64 definition.
#pragma once

#include <optional>

#include "cuda/tests/support/layer.h"

namespace twell::test {

// The rows of gate, then those of up.
template <class T>
TestMatrix<T> gate_and_up(const CudaLayer<T>& layer) {
  const std::int64_t neurons = layer.shape.neurons;
  TestMatrix<T> both(2 * neurons, layer.shape.width, layer.shape.padding);
  both.fill([&](std::int64_t r, std::int64_t c) {
    return r < neurons ? layer.gate.value(r, c) : layer.up.value(r - neurons, c);
  });
  return both;
}

// A layer's weights, input and output on the device. `joined`: gate and up are one matrix.
template <class T>
struct OnDevice {
  explicit OnDevice(const CudaLayer<T>& layer, bool joined_weights = false)
      : gated(layer.shape.gated),
        joined(joined_weights),
        x(layer.x),
        gate(joined ? gate_and_up(layer) : layer.gate),
        up(layer.up),
        down(layer.down),
        y(TestMatrix<T>(layer.shape.tokens, layer.shape.width, layer.shape.padding)) {}
  cuda::DeviceFfnWeights weights() const {
    if (!joined) return {gate.view(), gated ? up.view() : ConstMatrixView{}, down.view(), screen};
    ConstMatrixView first = gate.view();
    first.rows /= 2;
    ConstMatrixView second = first;
    second.data = static_cast<const T*>(first.data) + first.rows * first.row_stride;
    return {first, second, down.view(), screen};
  }
  bool gated, joined;
  cuda::DeviceScreenView screen;  // none
  DeviceMatrixOf<T> x, gate, up, down, y;
};

struct FfnOptions {
  std::size_t workspace_limit = std::size_t{1} << 30;
  std::optional<cuda::GemmShape> shape = {};  // forced
  std::int64_t hot = 0;
  bool joined = false;  // gate and up are one matrix
  int chunk = 0;        // forced where not 0
  int partials = -1;    // at most as many as planned; forced where not negative
  cuda::DeviceScreenView screen = {};
};

template <class T>
cuda::FfnPlan plan_of(const OnDevice<T>& on, const CudaLayer<T>& layer, const FfnOptions& options) {
  cuda::Problem problem =
      cuda::problem_of(on.x.view(), on.weights(), on.y.view(), layer.shape.activation);
  EXPECT_EQ(problem.aligned, layer.problem().aligned);
  // Allocations of their own may lie side by side by chance.
  EXPECT_TRUE(problem.joined || !on.joined);
  problem.joined = on.joined;
  problem.hot = options.hot;
  cuda::FfnPlan plan =
      cuda::plan_ffn(cuda::current_device(), problem, options.workspace_limit, options.shape);
  EXPECT_EQ(plan.joined, on.joined && plan.hot > 0 && layer.shape.neurons % 8 == 0);
  if (options.chunk != 0) plan.gather.chunk = options.chunk;
  if (options.partials >= 0) plan.gather.partials = options.partials;
  return plan;
}

// The plan's GEMM as an operation of its own, which packs all neurons.
inline cuda::GemmPlan gate_alone(const cuda::FfnPlan& plan) {
  cuda::GemmPlan gemm = plan.gemm;
  if (gemm.shape == cuda::GemmShape::library) {
    gemm.tile = static_cast<std::int32_t>((plan.problem.neurons + 15) / 16 * 16);
    gemm.workspace_bytes =
        cuda::plan_gemm_relu_twell(gemm.shape, cuda::current_device(), plan.problem)
            .workspace_bytes;
  }
  return gemm;
}

// What GEMMs of the first `hot` neurons may add to the error of y (r, c): u is summed by tensor
// cores and rounded, h is rounded, and so is the order of their sums another.
template <class T>
double hot_bound(const CudaLayer<T>& layer, const ref::Matrix& gate, std::int64_t hot,
                 std::int64_t r, std::int64_t c) {
  double bound = 0.0;
  double magnitude = 0.0;
  for (std::int64_t n = 0; n < hot; ++n) {
    const double g = gate.at(r, n);
    if (g == 0.0) continue;
    double u = 1.0;
    double u_error = 0.0;
    if (layer.shape.gated) {
      double u_magnitude = 0.0;
      u = 0.0;
      for (std::int64_t k = 0; k < layer.shape.width; ++k) {
        const double product = layer.x.value(r, k) * layer.up.value(n, k);
        u += product;
        u_magnitude += std::abs(product);
      }
      u_error = tensor_core_bound(static_cast<double>(layer.shape.width), u_magnitude);
      u_error += half_ulp<T>(std::abs(u) + u_error);
    }
    double h_error = std::abs(g) * u_error;
    if (layer.shape.gated) h_error += half_ulp<T>(std::abs(g * u) + h_error);
    const double weight = std::abs(layer.down.value(n, c));
    bound += h_error * weight;
    magnitude += (std::abs(g * u) + h_error) * weight;
  }
  return bound + tensor_core_bound(static_cast<double>(hot), magnitude);
}

// The plan's own gemm gives the activation; y is checked against it.
template <class T>
void check_ffn(const CudaLayer<T>& layer, const FfnOptions& options = {}) {
  OnDevice<T> on(layer, options.joined);
  on.screen = options.screen;
  const cuda::FfnPlan plan = plan_of(on, layer, options);
  SCOPED_TRACE(describe(layer.shape) + "; " + plan.to_string());
  DeviceBuffer<std::byte> memory(plan.workspace_bytes);
  DeviceBuffer<std::int32_t> row_nnz(static_cast<std::size_t>(layer.shape.tokens));
  DeviceBuffer<std::int64_t> neuron_counts(
      std::vector<std::int64_t>(static_cast<std::size_t>(layer.shape.neurons), 7));
  const ref::Matrix gate = check_gemm(gate_alone(plan), layer, 16, on.screen);
  const auto error = [&](std::int64_t r, std::int64_t c) {
    return hot_bound(layer, gate, plan.hot, r, c);
  };
  std::vector<T> first;
  // The second call finds in the workspace what the first left there, and counts nothing.
  for (int call = 0; call < 2; ++call) {
    on.y.poison();
    const cuda::DeviceStats stats = {row_nnz.data(), neuron_counts.data()};
    cuda::ffn(plan, on.x.view(), on.weights(), layer.shape.activation, on.y.mutable_view(),
              {memory.data(), memory.size()}, nullptr, call == 0 ? stats : cuda::DeviceStats{});
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
    expect_output(on.y, gate, layer, error);
    const std::vector<T> values = on.y.read();
    if (call == 0) first = values;
    if (first.empty()) continue;  // memcmp takes no null
    ASSERT_EQ(std::memcmp(first.data(), values.data(), first.size() * sizeof(T)), 0);
  }
  const auto rows = row_nnz.read();
  const auto neurons = neuron_counts.read();
  std::vector<std::int64_t> fired(static_cast<std::size_t>(layer.shape.neurons), 7);
  for (std::int64_t r = 0; r < gate.rows; ++r) {
    std::int32_t expected = 0;
    for (std::int64_t n = 0; n < gate.cols; ++n) {
      if (gate.at(r, n) == 0.0) continue;
      expected += 1;
      fired[static_cast<std::size_t>(n)] += 1;
    }
    ASSERT_EQ(rows[static_cast<std::size_t>(r)], expected) << r;
  }
  EXPECT_EQ(neurons, fired);
}

}  // namespace twell::test
