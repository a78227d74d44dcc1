// Text generation: prefill of all prompts, then one token per sequence and step.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decoder/model.h"
#include "engine/sampler.h"

namespace twell::lm {

enum class FinishReason : std::uint8_t { stop_token, max_tokens, context_full, stopped_by_caller };
const char* name_of(FinishReason reason);

struct GenerateOptions {
  std::int64_t max_tokens = 128;  // per sequence; 0 only runs the prompts
  std::int64_t min_tokens = 0;    // of a sequence before a stop token may end it
  SamplingOptions sampling = {};
  // Tokens that end a sequence; absent: eos of config.json. The token itself is the last of the
  // result.
  std::optional<std::vector<std::int64_t>> stop_tokens = {};
  // Called with (sequence, token) as soon as a token is known; false ends that sequence.
  std::function<bool(std::int64_t, std::int64_t)> on_token = {};
  FfnObserver* observer = nullptr;
  // Decode with StepDecoder, as a model on a GPU always does where nothing observes it.
  bool static_steps = false;
  std::int64_t prefill_rows = 2048;  // tokens per prefill pass: bounds the memory of activations
};

struct GeneratedSequence {
  std::vector<std::int64_t> tokens;  // without the prompt
  FinishReason finish = FinishReason::max_tokens;
};

struct GenerateTiming {
  std::int64_t prompt_tokens = 0;  // that were run
  double prefill_seconds = 0.0;    // until the logits of the first token
  std::int64_t decode_tokens = 0;  // tokens run through the model after the prompts
  double decode_seconds = 0.0;     // sampling included, the caller's on_token excluded

  double prefill_tokens_per_s() const;
  double decode_tokens_per_s() const;  // 0 where nothing was decoded
};

struct GenerateResult {
  std::vector<GeneratedSequence> sequences;  // in the order of the prompts
  GenerateTiming timing;
};

// Prompts may differ in length. Throws twell::Error for no prompt, an empty one, one longer than
// the model's context, a token outside the vocabulary, or options out of range.
GenerateResult generate(Model& model, std::span<const std::vector<std::int64_t>> prompts,
                        const GenerateOptions& options = {});

// As it, with a cache whose slot i holds the first tokens of prompt i already, if not all of them;
// only the others are run, and texts end where it is full. Afterwards it holds prompts and texts,
// but for the last token of each.
GenerateResult generate(Model& model, std::span<const std::vector<std::int64_t>> prompts,
                        const GenerateOptions& options, KvCache& cache);

}  // namespace twell::lm
