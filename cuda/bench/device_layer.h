// A layer in device memory, and what its operations write.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/bench/device_memory.h"
#include "cuda/bench/skewed_layer.h"
#include "twell/cuda.h"

namespace twell::bench {

struct DeviceLayer {
  explicit DeviceLayer(const SkewedLayer& layer)
      : width(layer.width),
        neurons(layer.neurons),
        x(layer.x),
        gate_up(joined(layer)),
        down(layer.down),
        y(layer.x.size()),
        rates(layer.rates),
        axis(mean_of(layer)),
        screen_memory(cuda::screen_bytes(neurons, width)),
        screen(cuda::make_screen(weights().gate.matrix(), axis.get(),
                                 {screen_memory.get(), screen_memory.size()}, nullptr)) {
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  }

  ConstMatrixView inputs(std::int64_t first, std::int64_t tokens) const {
    return {x.get() + first * width, DType::bf16, tokens, width};
  }
  MatrixView outputs(std::int64_t tokens) const { return {y.get(), DType::bf16, tokens, width}; }
  std::vector<std::uint16_t> read_outputs(std::int64_t tokens) const {
    return y.read(static_cast<std::size_t>(tokens * width));
  }
  FfnWeights weights() const {
    const auto weight = [&](const std::uint16_t* data) {
      return ConstMatrixView(data, DType::bf16, neurons, width);
    };
    return {weight(gate_up.get()), weight(gate_up.get() + neurons * width), weight(down.get()),
            screen};
  }
  cuda::Problem problem(std::int64_t tokens) const {
    cuda::Problem problem{tokens, width, neurons, DType::bf16, true, true};
    problem.joined = true;
    return problem;
  }

  std::int64_t width, neurons;
  DeviceMemory<std::uint16_t> x, gate_up, down, y;
  std::vector<double> rates;
  DeviceMemory<float> axis;
  DeviceMemory<std::byte> screen_memory;
  ScreenView screen;  // for plans that take it

 private:
  static std::vector<float> mean_of(const SkewedLayer& layer) {
    std::vector<float> sum(static_cast<std::size_t>(layer.width));
    for (std::size_t i = 0; i < layer.x.size(); ++i) {
      sum[i % sum.size()] += static_cast<float>(bf16::from_bits(layer.x[i]));
    }
    return sum;
  }
  static std::vector<std::uint16_t> joined(const SkewedLayer& layer) {
    std::vector<std::uint16_t> out = layer.gate;
    out.insert(out.end(), layer.up.begin(), layer.up.end());
    return out;
  }
};

}  // namespace twell::bench
