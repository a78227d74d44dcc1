// Models that `bench model` measures, each with a cache of its own, on the same texts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "decoder/model.h"
#include "device/device.h"
#include "measure/eager_model.h"

namespace twell::lm {

// Of every sequence the first `prompt` tokens are prefilled, and the next `decode` ones decoded.
struct Batch {
  std::span<const std::int64_t> tokens;  // one sequence after the other; outlives who runs it
  std::int64_t sequences = 1;
  std::int64_t prompt = 0, decode = 0;

  std::int64_t length() const { return prompt + decode; }
  std::span<const std::int64_t> of(std::int64_t sequence, std::int64_t first,
                                   std::int64_t count) const {
    return tokens.subspan(static_cast<std::size_t>(sequence * length() + first),
                          static_cast<std::size_t>(count));
  }
};

class Runner {
 public:
  virtual ~Runner() = default;
  // Prompts of all sequences, and the logits of their last tokens.
  virtual void prefill() = 0;
  // The i-th call decodes token i of the continuations, over and over. On a GPU a token of each is
  // sampled besides, which the host waits for; the texts' own tokens are what goes on.
  virtual void decode(std::int64_t i) = 0;
  virtual const at::Tensor& logits() const = 0;  // [sequences, V], of the last call
  virtual at::Device device() const = 0;
  // Weights and cache as they are now.
  virtual std::int64_t own_bytes() const = 0;
  // Forgets what calls left that a first call would not find, so that the memory of one can be
  // told. No call before it is undone.
  virtual void settle_memory() {}
  // Of the model's own pieces (decoder/profile.h). False where they cannot be told apart.
  virtual bool set_profile(Profile* /*profile*/) { return false; }
};

class ModelRunner final : public Runner {
 public:
  // Model and tokens outlive this. `recorded`: decoding is as generation has it on a GPU, by a
  // recorded step that samples. `enter` is called first in every call.
  ModelRunner(Model& model, const Batch& batch, bool recorded, std::function<void()> enter = {});

  void prefill() override;
  void decode(std::int64_t i) override;
  const at::Tensor& logits() const override { return logits_; }  // not of recorded steps
  at::Device device() const override { return model_.device(); }
  std::int64_t own_bytes() const override { return model_.weight_bytes() + cache_.bytes(); }
  // The next decode() runs and records its step anew: the memory of a recording is not counted in
  // its replays, that of a step before one is.
  void settle_memory() override { graph_.reset(); }
  bool set_profile(Profile* profile) override;

  // By the last decode(), recorded.
  std::vector<std::int64_t> sampled() const;

 private:
  void run(std::int64_t first, std::int64_t count);
  void decode_recorded(std::int64_t at);
  void step();

  Model& model_;
  Batch batch_;
  bool recorded_;
  std::function<void()> enter_;
  KvCache cache_;
  at::Tensor logits_;
  // On the device: the texts [length, sequences], the place of the next tokens [sequences], the
  // tokens sampled last [sequences].
  at::Tensor texts_, position_, sampled_, uniforms_;
  at::Tensor host_sampled_;
  std::int64_t next_ = -1;  // where position_ stands
  std::unique_ptr<StepGraph> graph_;
};

class EagerRunner final : public Runner {
 public:
  // Model and tokens outlive this.
  EagerRunner(const EagerModel& model, const Batch& batch);

  void prefill() override;
  void decode(std::int64_t i) override;
  const at::Tensor& logits() const override { return logits_; }
  at::Device device() const override { return model_.device(); }
  std::int64_t own_bytes() const override { return model_.weight_bytes() + cache_.bytes(); }

 private:
  void run(std::int64_t first, std::int64_t count);

  const EagerModel& model_;
  std::int64_t prompt_, decode_;
  EagerModel::Cache cache_;
  at::Tensor texts_;  // [sequences, length], on the device
  at::Tensor logits_;
};

}  // namespace twell::lm
