#include "engine/score.h"

#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>

#include "engine/sampler.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

// A sequence to run, of which the tokens from `first` on are scored.
struct Item {
  std::span<const std::int64_t> tokens;
  std::size_t first = 1;
};

// Logits of rows [begin, end) of `hidden`, row by row against `targets`: at most 256 rows of logits
// exist at a time, 50 MB at a vocabulary of 49,152.
void score_rows(Model& model, const at::Tensor& hidden, std::span<const std::int64_t> rows,
                std::span<const std::int64_t> targets, std::vector<double>& log_likelihood,
                std::vector<bool>& greedy) {
  constexpr std::size_t kRows = 256;
  for (std::size_t begin = 0; begin < rows.size(); begin += kRows) {
    const std::size_t n = std::min(kRows, rows.size() - begin);
    const auto index = at::tensor(at::ArrayRef<std::int64_t>(rows.data() + begin, n));
    const auto target =
        at::tensor(at::ArrayRef<std::int64_t>(targets.data() + begin, n)).to(hidden.device());
    const at::Tensor logits =
        model.head(hidden.index_select(0, index.to(hidden.device()))).to(at::kFloat);
    const at::Tensor chosen =
        at::log_softmax(logits, -1).gather(1, target.unsqueeze(1)).squeeze(1).contiguous().cpu();
    const at::Tensor best = logits.argmax(-1).contiguous().cpu();
    for (std::size_t i = 0; i < n; ++i) {
      const float value = chosen.const_data_ptr<float>()[i];
      if (!std::isfinite(value)) throw_broken_logits();
      log_likelihood.push_back(value);
      greedy.push_back(best.const_data_ptr<std::int64_t>()[i] == targets[begin + i]);
    }
  }
}

// Packs items into passes of about `rows` tokens and scores them. The last token of an item is a
// target only, so it is not run.
std::vector<ContinuationScore> score_items(Model& model, std::span<const Item> items,
                                           const ScoreOptions& options) {
  const c10::InferenceMode inference;
  std::vector<ContinuationScore> out;
  std::size_t next = 0;
  while (next < items.size()) {
    std::vector<Chunk> chunks;
    std::vector<std::int64_t> rows;
    std::vector<std::int64_t> targets;
    std::int64_t used = 0;
    const std::size_t first = next;
    while (next < items.size()) {
      const Item& item = items[next];
      const auto length = static_cast<std::int64_t>(item.tokens.size()) - 1;
      if (!chunks.empty() && used + length > options.rows) break;
      for (std::size_t i = item.first; i < item.tokens.size(); ++i) {
        rows.push_back(used + static_cast<std::int64_t>(i) - 1);
        targets.push_back(item.tokens[i]);
      }
      chunks.push_back({0, item.tokens.first(item.tokens.size() - 1)});
      used += length;
      ++next;
    }
    for (const std::int64_t target : targets) {
      if (target < 0 || target >= model.config().vocab_size) {
        throw Error(ErrorKind::invalid_argument, "score",
                    fmt::format("token id {} is outside the vocabulary of {}", target,
                                model.config().vocab_size));
      }
    }
    std::vector<double> log_likelihood;
    std::vector<bool> greedy;
    score_rows(model, model.hidden_states(chunks, nullptr, options.observer), rows, targets,
               log_likelihood, greedy);
    std::size_t at = 0;
    for (std::size_t i = first; i < next; ++i) {
      ContinuationScore score;
      for (std::size_t t = items[i].first; t < items[i].tokens.size(); ++t, ++at) {
        score.log_likelihood += log_likelihood[at];
        score.greedy = score.greedy && greedy[at];
        ++score.tokens;
      }
      out.push_back(score);
    }
    if (options.on_progress) {
      options.on_progress(static_cast<std::int64_t>(next), static_cast<std::int64_t>(items.size()));
    }
  }
  return out;
}

}  // namespace

std::vector<ContinuationScore> score_continuations(Model& model,
                                                   std::span<const ScoreRequest> requests,
                                                   const ScoreOptions& options) {
  const auto context = static_cast<std::size_t>(model.config().max_position_embeddings);
  std::vector<std::vector<std::int64_t>> sequences;
  sequences.reserve(requests.size());
  std::vector<Item> items;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const ScoreRequest& request = requests[i];
    const auto fail = [&](const std::string& message) {
      throw Error(ErrorKind::invalid_argument, "score", fmt::format("request {}: {}", i, message));
    };
    if (request.context.empty()) fail("the context is empty; begin it with a begin-of-text token");
    if (request.continuation.empty()) fail("the continuation is empty");
    if (request.continuation.size() > context) {
      fail(fmt::format("the continuation has {} tokens, the model's context is {}",
                       request.continuation.size(), context));
    }
    // One token more than the context fits, as the last is not run.
    const std::size_t kept =
        std::min(request.context.size(), context + 1 - request.continuation.size());
    auto& sequence = sequences.emplace_back(
        request.context.end() - static_cast<std::ptrdiff_t>(kept), request.context.end());
    sequence.insert(sequence.end(), request.continuation.begin(), request.continuation.end());
    items.push_back({sequence, kept});
  }
  return score_items(model, items, options);
}

double Perplexity::perplexity() const {
  return std::exp(negative_log_likelihood / static_cast<double>(tokens));
}

Perplexity perplexity(Model& model, std::span<const std::int64_t> stream,
                      const PerplexityOptions& options) {
  const std::int64_t context = model.config().max_position_embeddings;
  const std::int64_t window =
      options.window > 0 ? options.window : std::min<std::int64_t>(context, 2048);
  const std::int64_t stride = options.stride > 0 ? options.stride : window;
  const auto fail = [](const std::string& message) {
    throw Error(ErrorKind::invalid_argument, "perplexity", message);
  };
  if (stream.size() < 2) fail(fmt::format("needs at least 2 tokens, got {}", stream.size()));
  if (window > context) {
    fail(fmt::format("window of {} tokens, the model's context is {}", window, context));
  }
  if (stride > window) fail(fmt::format("stride {} is larger than the window {}", stride, window));
  // A window runs `window` tokens and scores the token after each: it spans window + 1 tokens.
  std::vector<Item> items;
  const auto length = static_cast<std::int64_t>(stream.size());
  std::int64_t scored = 1;  // tokens below this are done; the first has no context
  for (std::int64_t begin = 0; scored < length; begin += stride) {
    const std::int64_t end = std::min(begin + window + 1, length);
    items.push_back(
        {stream.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
         static_cast<std::size_t>(scored - begin)});
    scored = end;
  }
  Perplexity out;
  for (const ContinuationScore& score : score_items(model, items, options)) {
    out.negative_log_likelihood -= score.log_likelihood;
    out.tokens += score.tokens;
  }
  return out;
}

}  // namespace twell::lm
