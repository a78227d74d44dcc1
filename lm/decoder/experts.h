// A mixture of experts (io::ExpertSpec): of several feed-forward layers each token goes to a few.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/block_spec.h"
#include "decoder/feed_forward.h"

namespace twell::lm {

// Where each of N tokens goes.
struct Routing {
  at::Tensor experts;  // int64 [N, active], of each row different ones
  at::Tensor shares;   // f32 [N, active] of their outputs; a row's sum is 1
};
// By scores [N, experts]. Differentiable in the shares.
Routing route(const at::Tensor& scores, const io::ExpertSpec& spec);

// To observers, the layer is one of all experts' neurons, of which a token fires those of its own.
// On a CPU only.
class Experts final : public FeedForward {
 public:
  // router: [experts, D]; one layer for each of its rows.
  Experts(const at::Tensor& router, std::vector<std::unique_ptr<FeedForward>> experts,
          const io::ExpertSpec& spec);

  // By the router, for x [N, D] that it reads.
  Routing route(const at::Tensor& x) const;
  // For each token, the sum over its experts of share times output, in f32 and rounded once.
  // Differentiable where the experts are. Each expert is called once, for all its tokens. Throws
  // twell::Error for an observer that wants hidden activations.
  at::Tensor forward(const at::Tensor& x, const Routing& routing, std::int64_t layer,
                     FfnObserver* observer);
  // Routed by x itself.
  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    return forward(x, route(x), layer, observer);
  }

  FfnPath path() const override { return experts_.front()->path(); }
  std::int64_t own_bytes() const override;
  const CostModel* cost() const override { return experts_.front()->cost(); }
  std::optional<GateForm> gate_form() const override { return experts_.front()->gate_form(); }
  std::string describe(std::int64_t tokens) const override;

 private:
  at::Tensor router_;
  std::vector<std::unique_ptr<FeedForward>> experts_;
  io::ExpertSpec spec_;
};

}  // namespace twell::lm
