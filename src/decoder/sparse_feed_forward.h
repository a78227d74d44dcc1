// The two kinds of sparse feed-forward layers, and what they refuse alike.
#pragma once

#include <memory>

#include "choice/device.h"
#include "decoder/feed_forward.h"
#include "twell/findings.h"

namespace twell::lm {

// What they take was checked by make_sparse_feed_forward(). `findings`: what is known of the layer,
// or null.
std::unique_ptr<FeedForward> make_cpu_feed_forward(const FfnParameters& parameters,
                                                   const ActivationChoice& activation, FfnPath path,
                                                   const LayerFindings* findings);
std::unique_ptr<FeedForward> make_gpu_feed_forward(const FfnParameters& parameters,
                                                   const ActivationChoice& activation, FfnPath path,
                                                   const LayerFindings* findings,
                                                   DeviceRuntime& runtime);

// Throws twell::Error where a call of such a layer wants gradients, or has an observer that wants
// hidden activations of a layer that is never dense.
void require_inference(const at::Tensor& x);
void require_no_hidden(const FfnObserver* observer);

}  // namespace twell::lm
