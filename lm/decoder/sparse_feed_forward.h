// The two kinds of sparse feed-forward layers, and what they refuse alike.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "decoder/feed_forward.h"
#include "device/device.h"
#include "twell/findings.h"

namespace twell::lm {

// What they take was checked by make_sparse_feed_forward(). `findings`: what is known of the layer,
// or null.
std::unique_ptr<FeedForward> make_cpu_feed_forward(const FfnParameters& parameters,
                                                   const ActivationChoice& activation, FfnPath path,
                                                   const LayerFindings* findings);
// In cuda/layer.
std::unique_ptr<FeedForward> make_gpu_feed_forward(const FfnParameters& parameters,
                                                   const ActivationChoice& activation, FfnPath path,
                                                   const LayerFindings* findings,
                                                   DeviceRuntime& runtime);

// The dense side of a GPU's layer under FfnPath::automatic, and how observers see it.
class DenseSide {
 public:
  // `parameters`: the layer's own, as they are now.
  DenseSide(const ActivationChoice& activation, std::function<FfnParameters()> parameters)
      : activation_(activation), parameters_(std::move(parameters)) {}

  // `see_gate` is given the activated gate [N, H], unless it is empty. `show` changes what the
  // observer is shown, unless it is empty.
  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer,
                     const std::function<void(const at::Tensor& gate)>& see_gate,
                     const std::function<void(FfnActivity&)>& show = {});
  void reset() { dense_.reset(); }  // the weights have changed

 private:
  ActivationChoice activation_;
  std::function<FfnParameters()> parameters_;
  std::unique_ptr<FeedForward> dense_;  // once it was needed
};

// Throws twell::Error where a call of such a layer wants gradients, or has an observer that wants
// hidden activations of a layer that is never dense.
void require_inference(const at::Tensor& x);
void require_no_hidden(const FfnObserver* observer);

}  // namespace twell::lm
