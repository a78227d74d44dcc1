#include "measure/model_runner.h"

#include <torch/types.h>

#include "engine/sampler.h"

namespace twell::measure {

ModelRunner::ModelRunner(lm::Model& model, std::span<const std::int64_t> tokens,
                         std::int64_t prompt, std::int64_t decode, bool recorded)
    : model_(model),
      tokens_(tokens),
      prompt_(prompt),
      decode_(decode),
      recorded_(recorded),
      cache_(model.make_cache(1, prompt + decode, recorded)) {}

void ModelRunner::run(std::size_t first, std::size_t count) {
  const lm::Chunk chunk{0, tokens_.subspan(first, count)};
  const at::Tensor hidden = model_.hidden_states(std::span(&chunk, 1), &cache_);
  logits_ = model_.head(hidden.slice(0, hidden.size(0) - 1));
}

void ModelRunner::prefill() {
  cache_.truncate(0);
  run(0, static_cast<std::size_t>(prompt_));
}

void ModelRunner::decode(std::int64_t i) {
  const std::int64_t at = prompt_ + i % decode_;
  if (cache_.length(0) < prompt_) prefill();
  if (recorded_) {
    decode_recorded(at);
    return;
  }
  if (cache_.length(0) != at) {
    cache_.truncate(0, prompt_);
    for (std::int64_t p = prompt_; p < at; ++p) run(static_cast<std::size_t>(p), 1);
  }
  run(static_cast<std::size_t>(at), 1);
}

void ModelRunner::step() {
  const at::Tensor hidden = model_.step(text_.index_select(0, position_), position_, cache_);
  sampled_.copy_(lm::sample_rows(model_.head(hidden), {}, uniforms_));
  position_.add_(1);
}

void ModelRunner::decode_recorded(std::int64_t at) {
  lm::DeviceRuntime& runtime = lm::runtime_of(model_.device());
  if (!text_.defined()) {
    text_ = at::tensor(at::ArrayRef<std::int64_t>(tokens_.data(), tokens_.size()), at::kLong)
                .to(model_.device());
    position_ = at::zeros({1}, text_.options());
    sampled_ = at::zeros_like(position_);
    uniforms_ = at::zeros({1}, text_.options().dtype(at::kDouble));
    host_sampled_ = runtime.host_buffer(1, at::kLong);
  }
  if (graph_ == nullptr) {
    position_.fill_(at);
    step();  // what is made for the first time is not to be recorded
    graph_ = runtime.make_graph();
    graph_->capture([this] { step(); });
    next_ = at + 1;
  }
  if (at != next_) position_.fill_(at);
  graph_->replay();
  next_ = at + 1;
  host_sampled_.copy_(sampled_, /*non_blocking=*/true);
  runtime.synchronize();
}

std::int64_t ModelRunner::sampled() const { return *host_sampled_.const_data_ptr<std::int64_t>(); }

}  // namespace twell::measure
