#include "engine/generate.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "device/device.h"
#include "engine/step_decoder.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(const Model& model, std::span<const std::vector<std::int64_t>> prompts,
           const GenerateOptions& options) {
  const auto fail = [](const std::string& message) {
    throw Error(ErrorKind::invalid_argument, "generate", message);
  };
  options.sampling.validate();
  if (options.max_tokens < 0) {
    fail(fmt::format("max_tokens must be 0 or more, got {}", options.max_tokens));
  }
  if (options.min_tokens < 0) {
    fail(fmt::format("min_tokens must be 0 or more, got {}", options.min_tokens));
  }
  if (options.prefill_rows < 1) {
    fail(fmt::format("prefill_rows must be 1 or more, got {}", options.prefill_rows));
  }
  if (prompts.empty()) fail("no prompt");
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(prompts[i].size());
    if (length == 0) {
      fail(fmt::format("prompt {} is empty; give some text, or a begin-of-text token", i));
    }
    if (length > model.config().max_position_embeddings) {
      fail(fmt::format("prompt {} has {} tokens, more than the model's context of {}; shorten it",
                       i, length, model.config().max_position_embeddings));
    }
  }
}

// That the cache holds less than each prompt, and has room for it.
void check_held(const KvCache& cache, std::span<const std::vector<std::int64_t>> prompts) {
  const auto fail = [](const std::string& message) {
    throw Error(ErrorKind::invalid_argument, "generate", message);
  };
  if (cache.slots() != static_cast<std::int64_t>(prompts.size())) {
    fail(fmt::format("the cache has {} slots for {} prompts", cache.slots(), prompts.size()));
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<std::int64_t>(prompts[i].size());
    const std::int64_t held = cache.length(static_cast<std::int64_t>(i));
    if (held >= length) {
      fail(fmt::format("the cache holds {} tokens of prompt {}, which has {}", held, i, length));
    }
    if (length > cache.capacity()) {
      fail(fmt::format("prompt {} has {} tokens, the cache room for {}", i, length,
                       cache.capacity()));
    }
  }
}

bool takes_steps(const Model& model, const GenerateOptions& options) {
  return options.observer == nullptr && (options.static_steps || !model.device().is_cpu());
}

// Runs all prompts through the model, at most `rows` tokens at a time. -> the hidden state of each
// prompt's last token [prompts, D].
at::Tensor prefill(Model& model, std::span<const std::vector<std::int64_t>> prompts, KvCache& cache,
                   const GenerateOptions& options) {
  std::vector<at::Tensor> last(prompts.size());
  std::vector<Chunk> chunks;
  std::int64_t rows = 0;
  const auto flush = [&] {
    const at::Tensor hidden = model.hidden_states(chunks, &cache, options.observer);
    std::int64_t row = 0;
    for (const Chunk& chunk : chunks) {
      row += static_cast<std::int64_t>(chunk.tokens.size());
      last[static_cast<std::size_t>(chunk.slot)] = hidden.narrow(0, row - 1, 1);
    }
    chunks.clear();
    rows = 0;
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto held = static_cast<std::size_t>(cache.length(static_cast<std::int64_t>(i)));
    std::span<const std::int64_t> left = std::span(prompts[i]).subspan(held);
    while (!left.empty()) {
      const auto take =
          std::min<std::size_t>(left.size(), static_cast<std::size_t>(options.prefill_rows - rows));
      chunks.push_back({static_cast<std::int64_t>(i), left.first(take)});
      rows += static_cast<std::int64_t>(take);
      left = left.subspan(take);
      if (rows == options.prefill_rows) flush();
    }
  }
  if (!chunks.empty()) flush();
  return at::cat(last);
}

// What becomes of a sequence with each token.
struct Ends {
  Ends(const GenerateOptions& o, std::vector<std::int64_t> stops, std::int64_t most,
       GenerateResult& r)
      : options(o), stop_tokens(std::move(stops)), context(most), result(r) {}

  // Adds a token; false where it is the last. `length`: tokens of the sequence in the cache.
  bool add(std::size_t index, std::int64_t token, std::int64_t length) {
    GeneratedSequence& sequence = result.sequences[index];
    sequence.tokens.push_back(token);
    bool wanted = true;
    if (options.on_token) {
      const auto before = Clock::now();
      wanted = options.on_token(static_cast<std::int64_t>(index), token);
      callback_seconds += seconds_since(before);
    }
    if (std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end()) {
      sequence.finish = FinishReason::stop_token;
    } else if (!wanted) {
      sequence.finish = FinishReason::stopped_by_caller;
    } else if (static_cast<std::int64_t>(sequence.tokens.size()) >= options.max_tokens) {
      sequence.finish = FinishReason::max_tokens;
    } else if (length >= context) {
      sequence.finish = FinishReason::context_full;
    } else {
      return true;
    }
    return false;
  }

  const GenerateOptions& options;
  std::vector<std::int64_t> stop_tokens;
  std::int64_t context;
  GenerateResult& result;
  double callback_seconds = 0.0;
};

void decode_by_chunks(Model& model, KvCache& cache, at::Tensor logits, SeenTokens seen,
                      LogitBias bias, const GenerateOptions& options, Ends& ends,
                      GenerateResult& result) {
  // What a sequence needs besides its result.
  struct Active {
    std::size_t index;
    Random stream;
    std::int64_t token = 0;  // chosen, not yet run through the model
  };
  std::vector<Active> active;
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    active.push_back({i, sequence_stream(options.sampling.seed, static_cast<std::int64_t>(i))});
  }
  std::vector<Chunk> chunks;
  for (std::int64_t step = 0;; ++step) {
    bias.begin(step);
    // `logits` [active, V] belong to `active` in order; keep those that go on.
    std::vector<double> uniforms;
    std::vector<std::int64_t> slots;
    for (Active& one : active) {
      uniforms.push_back(one.stream.uniform());
      slots.push_back(static_cast<std::int64_t>(one.index));
    }
    const at::Tensor draws = at::tensor(uniforms, at::kDouble).to(logits.device());
    const at::Tensor rows = at::tensor(slots, at::kLong).to(logits.device());
    const at::Tensor chosen =
        sample_rows(seen.penalise(bias.add(logits), rows), options.sampling, draws);
    seen.add(chosen, rows);
    const at::Tensor tokens = chosen.cpu();
    const auto* token = tokens.const_data_ptr<std::int64_t>();
    std::vector<Active> going_on;
    for (Active& one : active) {
      one.token = *token++;
      if (one.token < 0) throw_broken_logits();
      if (ends.add(one.index, one.token, cache.length(static_cast<std::int64_t>(one.index)))) {
        going_on.push_back(one);
      }
    }
    active = std::move(going_on);
    if (active.empty()) return;
    chunks.clear();
    for (const Active& one : active) {
      chunks.push_back({static_cast<std::int64_t>(one.index), {&one.token, 1}});
    }
    logits = model.head(model.hidden_states(chunks, &cache, options.observer));
    result.timing.decode_tokens += static_cast<std::int64_t>(chunks.size());
  }
}

void decode_by_steps(Model& model, KvCache& cache, const at::Tensor& logits, SeenTokens seen,
                     LogitBias bias, const GenerateOptions& options, Ends& ends,
                     GenerateResult& result) {
  StepDecoder decoder(model, cache, options.sampling, std::move(seen), std::move(bias));
  std::vector<bool> going_on(result.sequences.size(), true);
  auto left = static_cast<std::int64_t>(result.sequences.size());
  std::span<const std::int64_t> tokens = decoder.first(logits);
  while (true) {
    for (std::size_t i = 0; i < going_on.size(); ++i) {
      const auto slot = static_cast<std::int64_t>(i);
      if (!going_on[i] || ends.add(i, tokens[i], cache.length(slot))) continue;
      going_on[i] = false;
      decoder.stop(slot);
      --left;
    }
    if (left == 0) return;
    tokens = decoder.next();
    result.timing.decode_tokens += left;
  }
}

}  // namespace

const char* name_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop_token:
      return "stop_token";
    case FinishReason::max_tokens:
      return "max_tokens";
    case FinishReason::context_full:
      return "context_full";
    case FinishReason::stopped_by_caller:
      return "stopped_by_caller";
  }
  return "unknown";
}

double GenerateTiming::prefill_tokens_per_s() const {
  return prefill_seconds > 0.0 ? static_cast<double>(prompt_tokens) / prefill_seconds : 0.0;
}
double GenerateTiming::decode_tokens_per_s() const {
  return decode_seconds > 0.0 ? static_cast<double>(decode_tokens) / decode_seconds : 0.0;
}

GenerateResult generate(Model& model, std::span<const std::vector<std::int64_t>> prompts,
                        const GenerateOptions& options) {
  check(model, prompts, options);
  const c10::InferenceMode inference;
  const std::int64_t context = model.config().max_position_embeddings;
  std::int64_t capacity = 0;
  for (const auto& prompt : prompts) {
    const auto length = static_cast<std::int64_t>(prompt.size());
    // The last token generated is not run. Both summands are bounded by the context first.
    capacity =
        std::max(capacity, std::min(length + std::min(options.max_tokens, context), context));
  }
  KvCache cache = model.make_cache(static_cast<std::int64_t>(prompts.size()), capacity,
                                   takes_steps(model, options));
  return generate(model, prompts, options, cache);
}

GenerateResult generate(Model& model, std::span<const std::vector<std::int64_t>> prompts,
                        const GenerateOptions& options, KvCache& cache) {
  check(model, prompts, options);
  check_held(cache, prompts);
  const c10::InferenceMode inference;
  std::vector<std::int64_t> stop_tokens;
  if (options.stop_tokens) {
    stop_tokens = *options.stop_tokens;
  } else {
    stop_tokens.assign(model.config().eos_token_ids.begin(), model.config().eos_token_ids.end());
  }
  GenerateResult result;
  result.sequences.resize(prompts.size());
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    result.timing.prompt_tokens +=
        static_cast<std::int64_t>(prompts[i].size()) - cache.length(static_cast<std::int64_t>(i));
  }

  auto start = Clock::now();
  const at::Tensor logits = model.head(prefill(model, prompts, cache, options));
  runtime_of(model.device()).synchronize();
  result.timing.prefill_seconds = seconds_since(start);
  if (options.max_tokens == 0) return result;

  start = Clock::now();
  SeenTokens seen(prompts, logits.size(1), options.sampling.repetition_penalty, logits.device());
  std::vector<io::TokenBias> biases = options.sampling.biases;
  for (const std::int64_t end : stop_tokens) {
    biases.push_back({end, -std::numeric_limits<double>::infinity(), options.min_tokens});
  }
  LogitBias bias(std::move(biases), logits.size(1), logits.device());
  const std::int64_t context = std::min(model.config().max_position_embeddings, cache.capacity());
  Ends ends(options, std::move(stop_tokens), context, result);
  if (takes_steps(model, options)) {
    decode_by_steps(model, cache, logits, std::move(seen), std::move(bias), options, ends, result);
  } else {
    decode_by_chunks(model, cache, logits, std::move(seen), std::move(bias), options, ends, result);
  }
  result.timing.decode_seconds = seconds_since(start) - ends.callback_seconds;
  return result;
}

}  // namespace twell::lm
