#include "engine/layer_watch.h"

#include <string>
#include <utility>

namespace twell::lm {
namespace {

class WatchedFeedForward final : public FeedForward {
 public:
  WatchedFeedForward(FeedForward& layer, std::function<void(const at::Tensor&)> on_input)
      : layer_(layer), on_input_(std::move(on_input)) {}

  at::Tensor forward(const at::Tensor& x, std::int64_t layer, FfnObserver* observer) override {
    on_input_(x);
    return layer_.forward(x, layer, observer);
  }
  FfnPath path() const override { return layer_.path(); }
  std::string describe(std::int64_t tokens) const override { return layer_.describe(tokens); }

 private:
  FeedForward& layer_;
  std::function<void(const at::Tensor&)> on_input_;
};

}  // namespace

LayerWatch::LayerWatch(Model& model, std::int64_t layer,
                       std::function<void(const at::Tensor&)> on_input)
    : model_(model), layer_(layer) {
  watched_ = model.set_feed_forward(
      layer, std::make_unique<WatchedFeedForward>(model.feed_forward(layer), std::move(on_input)));
}

LayerWatch::~LayerWatch() { model_.set_feed_forward(layer_, std::move(watched_)); }

}  // namespace twell::lm
