#include "engine/step_decoder.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "twell/status.h"

namespace twell::lm {
namespace {

// Steps that run as they are: the first makes tables and workspaces that later ones find, and every
// further one of them looks at how dense the layers have become, which a recording cannot do.
constexpr std::int64_t kWarmSteps = 2;
// Recorded anew so often, after one step that is not a replay: a layer that chooses its path by
// density is asked again. A step more in 256 costs nothing that can be seen.
constexpr std::int64_t kStepsOfRecording = 256;

}  // namespace

StepDecoder::StepDecoder(Model& model, KvCache& cache, const SamplingOptions& sampling,
                         SeenTokens seen, LogitBias bias)
    : model_(model),
      cache_(cache),
      sampling_(sampling),
      seen_(std::move(seen)),
      bias_(std::move(bias)),
      runtime_(runtime_of(model.device())),
      active_(static_cast<std::size_t>(cache.slots()), true) {
  sampling_.validate();
  if (!cache.fixed()) {
    throw Error(ErrorKind::invalid_argument, "StepDecoder",
                "needs a fixed cache; make it with make_cache(slots, capacity, true)");
  }
  const std::int64_t slots = cache.slots();
  const auto on_device = at::TensorOptions(at::kLong).device(model.device());
  std::vector<std::int64_t> lengths;
  for (std::int64_t slot = 0; slot < slots; ++slot) {
    lengths.push_back(cache.length(slot));
    streams_.push_back(sequence_stream(sampling_.seed, slot));
  }
  positions_ = at::tensor(lengths, at::kLong).to(model.device());
  tokens_ = at::zeros({slots}, on_device);
  moves_ = at::ones({slots}, on_device);
  uniforms_ = at::zeros({slots}, on_device.dtype(at::kDouble));
  host_tokens_ = runtime_.host_buffer(slots, at::kLong);
  host_uniforms_ = runtime_.host_buffer(slots, at::kDouble);
}

void StepDecoder::draw() {
  if (sampling_.temperature == 0.0) return;
  auto* values = host_uniforms_.mutable_data_ptr<double>();
  for (std::size_t slot = 0; slot < streams_.size(); ++slot) {
    if (active_[slot]) values[slot] = streams_[slot].uniform();
  }
  uniforms_.copy_(host_uniforms_, /*non_blocking=*/true);
}

std::span<const std::int64_t> StepDecoder::fetch() {
  host_tokens_.copy_(tokens_, /*non_blocking=*/true);
  runtime_.synchronize();
  const std::span<const std::int64_t> tokens(host_tokens_.const_data_ptr<std::int64_t>(),
                                             streams_.size());
  for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
    if (active_[slot] && tokens[slot] < 0) throw_broken_logits();
  }
  return tokens;
}

std::span<const std::int64_t> StepDecoder::first(const at::Tensor& logits) {
  const c10::InferenceMode inference;
  draw();
  bias_.begin(0);
  choose(logits);
  return fetch();
}

void StepDecoder::choose(const at::Tensor& logits) {
  tokens_.copy_(sample_rows(seen_.penalise(bias_.add(logits)), sampling_, uniforms_));
  seen_.add(tokens_);
}

// What is recorded.
void StepDecoder::run() {
  // A slot that met broken logits holds -1; it is stopped or the caller has been told.
  const at::Tensor hidden = model_.step(tokens_.clamp_min(0), positions_, cache_);
  choose(model_.head(hidden));
  positions_.add_(moves_);
}

std::span<const std::int64_t> StepDecoder::next() {
  const c10::InferenceMode inference;
  for (std::int64_t slot = 0; slot < cache_.slots(); ++slot) {
    if (!active_[static_cast<std::size_t>(slot)]) continue;
    if (cache_.length(slot) >= cache_.capacity()) {
      throw Error(ErrorKind::invalid_argument, "StepDecoder",
                  fmt::format("the cache of slot {} is full ({} tokens)", slot, cache_.capacity()));
    }
    cache_.advance(slot, 1);
  }
  draw();
  bias_.begin(steps_ + 1);
  if (graph_ != nullptr && steps_ % kStepsOfRecording == 0) graph_.reset();
  if (graph_ == nullptr && steps_ >= kWarmSteps && steps_ % kStepsOfRecording != 0) {
    auto graph = runtime_.make_graph();
    graph->capture([this] { run(); });
    graph_ = std::move(graph);
  }
  if (graph_ != nullptr) {
    graph_->replay();
    ++replays_;
  } else {
    run();
  }
  ++steps_;
  return fetch();
}

void StepDecoder::stop(std::int64_t slot) {
  const c10::InferenceMode inference;
  active_[static_cast<std::size_t>(slot)] = false;
  // It goes on writing to the place of its last token, which nobody reads.
  moves_[slot].fill_(0);
  positions_[slot].clamp_max_(cache_.capacity() - 1);
}

}  // namespace twell::lm
