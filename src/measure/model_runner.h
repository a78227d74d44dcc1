// A model that `bench model` measures, with a cache and a text of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "choice/device.h"
#include "decoder/model.h"

namespace twell::measure {

class ModelRunner {
 public:
  // The first `prompt` of the tokens are prefilled, the next `decode` decoded. Model and tokens
  // outlive this. `recorded`: decoding is as generation has it on a GPU.
  ModelRunner(lm::Model& model, std::span<const std::int64_t> tokens, std::int64_t prompt,
              std::int64_t decode, bool recorded);

  void prefill();
  // The i-th call decodes token i of the continuation, over and over. Recorded: by a step that
  // samples the next token, which the host waits for; the text's own token is what goes on.
  void decode(std::int64_t i);
  // The next decode() runs and records its step anew.
  void drop_recording() { graph_.reset(); }

  lm::Model& model() { return model_; }
  const at::Tensor& logits() const { return logits_; }  // of the last token; not recorded ones
  std::int64_t sampled() const;                         // by the last decode(), recorded
  // Of the device: weights and cache.
  std::int64_t own_bytes() const { return model_.weight_bytes() + cache_.bytes(); }

 private:
  void run(std::size_t first, std::size_t count);
  void decode_recorded(std::int64_t at);
  void step();

  lm::Model& model_;
  std::span<const std::int64_t> tokens_;
  std::int64_t prompt_, decode_;
  bool recorded_;
  lm::KvCache cache_;
  at::Tensor logits_;
  // On the device: the text, the place of the next token [1], the token sampled last [1].
  at::Tensor text_, position_, sampled_, uniforms_;
  at::Tensor host_sampled_;
  std::int64_t next_ = -1;  // where position_ stands
  std::unique_ptr<lm::StepGraph> graph_;
};

}  // namespace twell::measure
