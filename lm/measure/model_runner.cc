#include "measure/model_runner.h"

#include <torch/types.h>

#include <utility>

#include "engine/sampler.h"

namespace twell::lm {
namespace {

// [sequences, length], on the CPU.
at::Tensor matrix_of(const Batch& batch) {
  return at::tensor(at::ArrayRef<std::int64_t>(batch.tokens.data(), batch.tokens.size()), at::kLong)
      .narrow(0, 0, batch.sequences * batch.length())
      .view({batch.sequences, batch.length()});
}

}  // namespace

ModelRunner::ModelRunner(Model& model, const Batch& batch, bool recorded,
                         std::function<void()> enter)
    : model_(model),
      batch_(batch),
      recorded_(recorded),
      enter_(std::move(enter)),
      cache_(model.make_cache(batch.sequences, batch.length(), recorded)) {}

void ModelRunner::run(std::int64_t first, std::int64_t count) {
  std::vector<Chunk> chunks;
  for (std::int64_t s = 0; s < batch_.sequences; ++s) {
    chunks.push_back({s, batch_.of(s, first, count)});
  }
  const at::Tensor hidden = model_.hidden_states(chunks, &cache_);
  logits_ = model_.head(hidden.slice(0, count - 1, hidden.size(0), count));
}

void ModelRunner::prefill() {
  if (enter_) enter_();
  for (std::int64_t s = 0; s < batch_.sequences; ++s) cache_.truncate(s);
  run(0, batch_.prompt);
}

void ModelRunner::decode(std::int64_t i) {
  const std::int64_t at = batch_.prompt + i % batch_.decode;
  if (cache_.length(0) < batch_.prompt) prefill();
  if (enter_) enter_();
  if (recorded_) {
    decode_recorded(at);
    return;
  }
  if (cache_.length(0) != at) {
    for (std::int64_t s = 0; s < batch_.sequences; ++s) cache_.truncate(s, batch_.prompt);
    for (std::int64_t p = batch_.prompt; p < at; ++p) run(p, 1);
  }
  run(at, 1);
}

void ModelRunner::step() {
  const at::Tensor tokens = texts_.index_select(0, position_.slice(0, 0, 1)).flatten();
  const at::Tensor hidden = model_.step(tokens, position_, cache_);
  sampled_.copy_(sample_rows(model_.head(hidden), {}, uniforms_));
  position_.add_(1);
}

void ModelRunner::decode_recorded(std::int64_t at) {
  DeviceRuntime& runtime = runtime_of(model_.device());
  if (!texts_.defined()) {
    texts_ = matrix_of(batch_).t().contiguous().to(model_.device());
    position_ = at::zeros({batch_.sequences}, texts_.options());
    sampled_ = at::zeros_like(position_);
    uniforms_ = at::zeros({batch_.sequences}, texts_.options().dtype(at::kDouble));
    host_sampled_ = runtime.host_buffer(batch_.sequences, at::kLong);
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

bool ModelRunner::set_profile(Profile* profile) {
  model_.set_profile(profile);
  return true;
}

std::vector<std::int64_t> ModelRunner::sampled() const {
  const auto* ids = host_sampled_.const_data_ptr<std::int64_t>();
  return {ids, ids + batch_.sequences};
}

EagerRunner::EagerRunner(const EagerModel& model, const Batch& batch)
    : model_(model),
      prompt_(batch.prompt),
      decode_(batch.decode),
      texts_(matrix_of(batch).to(model.device())) {}

void EagerRunner::run(std::int64_t first, std::int64_t count) {
  const at::Tensor hidden = model_.hidden_states(texts_.narrow(1, first, count), &cache_);
  logits_ = model_.head(hidden.select(1, count - 1));
}

void EagerRunner::prefill() {
  cache_ = {};
  run(0, prompt_);
}

void EagerRunner::decode(std::int64_t i) {
  const std::int64_t at = prompt_ + i % decode_;
  if (cache_.length() < prompt_) prefill();
  if (cache_.length() != at) {
    cache_.crop(prompt_);
    for (std::int64_t p = prompt_; p < at; ++p) run(p, 1);
  }
  run(at, 1);
  if (device().is_cpu()) return;
  const at::Tensor uniforms = at::zeros({logits_.size(0)}, logits_.options().dtype(at::kDouble));
  (void)sample_rows(logits_, {}, uniforms).cpu();
}

}  // namespace twell::lm
