// One feed-forward layer, forward and backward: PyTorch's dense autograd against twell/train.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "decoder/feed_forward.h"
#include "measure/timing.h"
#include "synth/synthetic.h"

namespace twell::lm {

struct TrainCase {
  SyntheticShape shape;
  ActivationChoice activation;
  const SyntheticLayer& layer;
  at::Tensor x;  // [M, D]
  double nnz_target = 0;
  MeasureOptions measure;
};

// One call is forward and backward of M tokens, weights prepared anew, weight gradients in the
// layer's dtype. Keys as run_ffn_case(), and saved_bytes: what is kept between forward and backward
// beside x. `tick` is called 2 repeats + 1 times.
nlohmann::json run_train_case(const TrainCase& c, const std::function<void()>& tick);

}  // namespace twell::lm
