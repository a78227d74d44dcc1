// Likelihoods under a model: of continuations (multiple-choice tasks) and of a token stream
// (perplexity). Natural logarithms.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "decoder/model.h"

namespace twell::lm {

struct ScoreRequest {
  std::vector<std::int64_t> context;  // at least one token, for example begin-of-text
  std::vector<std::int64_t> continuation;
};

struct ContinuationScore {
  double log_likelihood = 0.0;  // Σ log p(token | context and the tokens before it)
  bool greedy = true;           // every token is the model's likeliest
  std::int64_t tokens = 0;
};

struct ScoreOptions {
  std::int64_t rows = 2048;  // tokens per pass
  FfnObserver* observer = nullptr;
  // Called with (done, total) requests or tokens after each pass.
  std::function<void(std::int64_t, std::int64_t)> on_progress;
};

// One score per request. A context too long for the model loses its first tokens; a continuation
// that does not fit is a twell::Error, as are an empty context and an empty continuation.
std::vector<ContinuationScore> score_continuations(Model& model,
                                                   std::span<const ScoreRequest> requests,
                                                   const ScoreOptions& options = {});

struct PerplexityOptions : ScoreOptions {
  std::int64_t window = 0;  // tokens per sequence; 0: the model's context, at most 2048
  // Tokens a window moves on. Every token is scored once, after at least window - stride tokens of
  // context except at the start of the stream. 0: the window, the fastest.
  std::int64_t stride = 0;
};

struct Perplexity {
  double negative_log_likelihood = 0.0;  // Σ over the scored tokens
  std::int64_t tokens = 0;               // scored: all but the first of the stream
  double perplexity() const;             // exp of the mean; NaN where no token was scored
};

// Throws twell::Error for fewer than two tokens or a window that the model does not have.
Perplexity perplexity(Model& model, std::span<const std::int64_t> stream,
                      const PerplexityOptions& options = {});

}  // namespace twell::lm
