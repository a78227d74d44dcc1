// Choosing the next tokens of several sequences, where their logits are.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/generation_config.h"
#include "decoder/random.h"

namespace twell::lm {

// Applied in this order, as in `transformers`: repetition_penalty, temperature, top_k, top_p,
// min_p.
struct SamplingOptions {
  // Divides the positive logits of tokens that the sequence has already, and multiplies the
  // negative ones (Keskar et al., CTRL, section 4.1); above 0, 1: none.
  double repetition_penalty = 1.0;
  double temperature = 0.0;  // 0: greedy, the largest logit, the smaller id of equals
  std::int64_t top_k = 0;    // only the k likeliest, of equals those of smaller id; 0: all
  double top_p = 1.0;        // only the likeliest until their sum reaches it, at least one; [0, 1]
  double min_p = 0.0;        // only those at least so many times as likely as the likeliest; [0, 1]
  std::uint64_t seed = 0;
  std::vector<io::TokenBias> biases = {};  // before all others; of a token that there is

  void validate() const;  // throws twell::Error naming the option
};

// The stream of draws of a sequence of a batch, one a token. Every sequence has its own, so that
// its text does not depend on its neighbours; sequence 0 draws what a batch of one draws.
Random sequence_stream(std::uint64_t seed, std::int64_t sequence);

// What biases add to the logits of a batch whose sequences have as many new tokens each. It stays
// where it is in memory, for steps that are recorded.
class LogitBias {
 public:
  LogitBias() = default;  // of no biases
  LogitBias(std::vector<io::TokenBias> biases, std::int64_t vocabulary, at::Device device);
  // Before each step: `step` is the number of new tokens that there are.
  void begin(std::int64_t step);
  at::Tensor add(const at::Tensor& logits) const;  // [B, V]

 private:
  std::vector<io::TokenBias> biases_;
  at::Tensor sums_;  // f32 [V]
};

// Which tokens the sequences of a batch have, for repetition_penalty: their rows of a mask.
class SeenTokens {
 public:
  SeenTokens() = default;  // of a penalty of 1: keeps nothing, changes nothing
  SeenTokens(std::span<const std::vector<std::int64_t>> sequences, std::int64_t vocabulary,
             double penalty, at::Device device);
  // logits [B, V] of the sequences `rows` (int64 [B]; undefined: all), with the penalty.
  at::Tensor penalise(const at::Tensor& logits, const at::Tensor& rows = {}) const;
  // Adds a token, int64 [B], to each of the sequences; -1 adds none. No shape depends on a value.
  void add(const at::Tensor& tokens, const at::Tensor& rows = {});

 private:
  double penalty_ = 1.0;
  at::Tensor mask_;  // bool [sequences, V]
};

// logits [B, V], compared in f32, and uniforms f64 [B] from Random::uniform(), on one device ->
// token ids, int64 [B]; -1 where a logit is NaN or the largest is infinite. A row's token depends
// on that row alone. On a GPU nothing is read back and no shape depends on a value.
at::Tensor sample_rows(const at::Tensor& logits, const SamplingOptions& options,
                       const at::Tensor& uniforms);

// Throws the twell::Error of logits that are NaN or infinite.
[[noreturn]] void throw_broken_logits();

}  // namespace twell::lm
