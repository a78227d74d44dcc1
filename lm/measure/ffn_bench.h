// One feed-forward layer: PyTorch's dense path, the sparse one, and the engine's choice, in turns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "decoder/feed_forward.h"
#include "measure/peaks.h"
#include "measure/timing.h"
#include "synth/synthetic.h"

namespace twell::lm {

// A layer for both sides, on one device.
struct BenchLayer {
  BenchLayer(const SyntheticLayer& made, const ActivationChoice& choice, at::Device device);
  SyntheticLayer source;
  std::shared_ptr<FeedForward> sparse;
};

struct FfnCase {
  SyntheticShape shape;
  ActivationChoice activation;
  const std::vector<BenchLayer>& layers;  // used in turns
  at::Tensor inputs;                      // [slices, M, D], used in turns
  double nnz_target = 0;
  MeasureOptions measure;

  std::int64_t tokens() const { return inputs.size(1); }
};

// Keys of the result: tokens, nnz_target, nnz_mean, nnz_max, distinct_neurons; for dense, sparse
// and auto their median, minimum and maximum in microseconds and which implementation or path ran;
// speedup with its range; bytes, FLOPs and, with `peaks`, floors; errors against fp64. `tick` is
// called 3 repeats + 1 times.
nlohmann::json run_ffn_case(const FfnCase& c, const std::optional<Peaks>& peaks,
                            const std::function<void()>& tick);

}  // namespace twell::lm
