#include "measure/joined_layers.h"

#include <torch/types.h>
#include <torch/utils.h>

#include <utility>

namespace twell::lm {
namespace {

class EitherFeedForward final : public FeedForward {
 public:
  EitherFeedForward(const FfnParameters& parameters, const ActivationChoice& activation,
                    at::Tensor both, std::shared_ptr<const bool> joined)
      : apart_(make_dense_feed_forward(parameters, activation)),
        activation_(activation),
        both_(std::move(both)),
        down_(parameters.down),
        joined_(std::move(joined)) {}

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    if (!*joined_ || observer != nullptr) return apart_->forward(x, layer, observer);
    const at::Tensor products = at::linear(x, both_);  // [N, 2H]
    const std::int64_t neurons = products.size(1) / 2;
    at::Tensor gate = products.narrow(1, 0, neurons);
    activate_(gate, activation_);
    // A new tensor: the down GEMM reads a contiguous one faster.
    return at::linear(at::mul(gate, products.narrow(1, neurons, neurons)), down_);
  }
  FfnPath path() const override { return FfnPath::dense; }
  std::string describe(std::int64_t tokens) const override { return apart_->describe(tokens); }

 private:
  std::unique_ptr<FeedForward> apart_;
  ActivationChoice activation_;
  at::Tensor both_, down_;
  std::shared_ptr<const bool> joined_;
};

}  // namespace

JoinedLayers::JoinedLayers(Model& model) {
  const at::NoGradGuard no_grad;
  for (std::int64_t layer = 0; layer < model.layers(); ++layer) {
    FfnParameters parameters = model.ffn_parameters(layer);
    const at::Tensor both = at::cat({parameters.gate, parameters.up});
    const std::int64_t neurons = parameters.gate.size(0);
    // The handles of the model and of its layers see the new memory as well.
    parameters.gate.set_data(both.narrow(0, 0, neurons));
    parameters.up.set_data(both.narrow(0, neurons, neurons));
    model.set_feed_forward(
        layer, std::make_unique<EitherFeedForward>(parameters, model.activation(), both, joined_));
  }
}

}  // namespace twell::lm
