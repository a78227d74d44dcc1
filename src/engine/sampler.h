// Choosing the next token. No PyTorch: the same logits and seed give the same token everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "models/random.h"

namespace twell::lm {

// Applied in this order, as in `transformers`: temperature, top_k, top_p.
struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy, the largest logit, the smaller id of equals
  std::int64_t top_k = 0;    // only the k likeliest; 0: all
  double top_p = 1.0;        // only the likeliest that together reach this probability; (0, 1]
  std::uint64_t seed = 0;

  void validate() const;  // throws twell::Error naming the option
};

// The stream of draws of a sequence of a batch.
Random sequence_stream(std::uint64_t seed, std::int64_t sequence);

// Throws the twell::Error of logits that are NaN or infinite.
[[noreturn]] void throw_broken_logits();

class Sampler {
 public:
  // `sequence`: the index in a batch. Every sequence draws from a stream of its own, so that its
  // text does not depend on its neighbours; sequence 0 draws what a batch of one draws.
  explicit Sampler(const SamplingOptions& options, std::int64_t sequence = 0);

  // Throws twell::Error where a logit is NaN.
  std::int64_t sample(std::span<const float> logits);

 private:
  struct Candidate {
    double weight;  // exp((logit - largest) / temperature)
    std::int64_t token;
  };
  void weigh(std::span<const float> logits, float largest);
  std::int64_t sample_top_k(std::span<const float> logits, float largest);
  std::int64_t sample_top_p();
  std::int64_t draw_any();
  std::size_t pick_bin(std::size_t count, double& left) const;
  std::int64_t draw(std::span<const Candidate> candidates, double total);

  SamplingOptions options_;
  Random random_;
  std::vector<double> weights_;  // of all tokens
  std::vector<double> bins_;
  std::vector<Candidate> candidates_;
};

}  // namespace twell::lm
