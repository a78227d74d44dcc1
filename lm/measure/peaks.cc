#include "measure/peaks.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "measure/timing.h"

namespace twell::lm {

Peaks measure_peaks(at::ScalarType dtype) {
  constexpr std::int64_t kWords = (256LL << 20) / 8;  // larger than any cache
  constexpr std::int64_t kSide = 2048;
  const at::Tensor words = at::ones({kWords}, at::kLong);
  const std::int64_t* data = words.const_data_ptr<std::int64_t>();
  std::atomic<std::int64_t> sink{0};
  const auto read_all = [&](std::int64_t) {
    at::parallel_for(0, kWords, kWords / at::get_num_threads(),
                     [&](std::int64_t b, std::int64_t e) {
                       sink += std::accumulate(data + b, data + e, std::int64_t{0});
                     });
  };
  const at::Tensor a = at::ones({kSide, kSide}, dtype);
  const auto multiply = [&](std::int64_t) { at::linear(a, a); };
  MeasureOptions options;
  options.repeats = 3;
  options.min_seconds = 0.1;
  const auto timings = measure_in_turns({read_all, multiply}, options);
  Peaks peaks;
  peaks.bytes_per_us = 8.0 * static_cast<double>(kWords) / timings[0].min_us;
  peaks.flops_per_us = 2.0 * static_cast<double>(kSide * kSide * kSide) / timings[1].min_us;
  return peaks;
}

FfnWork ffn_work(std::int64_t tokens, const SyntheticShape& shape, double nnz, double distinct) {
  const double m = static_cast<double>(tokens), d = static_cast<double>(shape.width);
  const auto h = static_cast<double>(shape.neurons);
  const auto bytes = static_cast<double>(at::elementSize(shape.dtype));
  const double others = shape.gated ? 2 : 1;  // matrices besides the one with the activation
  FfnWork work;
  work.dense_flops = 2 * m * h * d * (1 + others);
  work.dense_bytes = bytes * d * (h * (1 + others) + 2 * m);
  work.sparse_flops = 2 * m * h * d + 2 * m * nnz * d * others;
  work.sparse_bytes = bytes * d * (h + std::min(distinct, h) * others + 2 * m);
  return work;
}

}  // namespace twell::lm
