// Decoding with static buffers: a step reads tokens, positions and draws from tensors that stay
// where they are and leaves the next ones there, so that it can be recorded once (StepGraph) and
// replayed for every further token. On a GPU a step is then one launch instead of some twenty a
// layer. On the CPU the same steps run one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "decoder/model.h"
#include "device/device.h"
#include "engine/sampler.h"

namespace twell::lm {

class StepDecoder {
 public:
  // Decodes all slots of `cache`, which is fixed and holds their prompts, whose tokens `seen` has.
  // Model, cache and their device outlive this. Slot i draws from sequence_stream(seed, i).
  StepDecoder(Model& model, KvCache& cache, const SamplingOptions& sampling, SeenTokens seen = {},
              LogitBias bias = {});

  // Samples the first tokens from the logits [slots, V] of the prompts' last tokens.
  std::span<const std::int64_t> first(const at::Tensor& logits);
  // Runs the tokens sampled last through the model and samples the next ones. Slots that are
  // stopped keep their place: they are computed and ignored, so that shapes stay. The one wait for
  // the device is that for the tokens.
  std::span<const std::int64_t> next();
  void stop(std::int64_t slot);

  // Steps that were replays of a recording.
  std::int64_t replays() const { return replays_; }

 private:
  void run();
  void choose(const at::Tensor& logits);
  std::span<const std::int64_t> fetch();
  void draw();

  Model& model_;
  KvCache& cache_;
  SamplingOptions sampling_;
  SeenTokens seen_;
  LogitBias bias_;
  DeviceRuntime& runtime_;
  std::vector<Random> streams_;
  // On the device, [slots] each.
  at::Tensor tokens_, positions_, moves_, uniforms_;
  at::Tensor host_tokens_, host_uniforms_;  // what is copied to and from them
  std::vector<bool> active_;
  std::unique_ptr<StepGraph> graph_;
  std::int64_t steps_ = 0, replays_ = 0;
};

}  // namespace twell::lm
