// Looking at what a feed-forward layer reads while its model runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "decoder/model.h"

namespace twell::lm {

// As long as this lives, `on_input` is told the inputs [N, D] of every call of the layer, before
// the layer computes. The model outlives it, and so does the layer that it has now.
class LayerWatch {
 public:
  LayerWatch(Model& model, std::int64_t layer, std::function<void(const at::Tensor&)> on_input);
  ~LayerWatch();
  LayerWatch(const LayerWatch&) = delete;
  LayerWatch& operator=(const LayerWatch&) = delete;

 private:
  Model& model_;
  std::int64_t layer_;
  std::unique_ptr<FeedForward> watched_;
};

}  // namespace twell::lm
