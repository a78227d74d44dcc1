#include "engine/conversation.h"

#include <algorithm>

namespace twell::lm {

Conversation::Conversation(Model& model, std::int64_t context)
    : model_(model),
      cache_(model.make_cache(1, std::min(context, model.config().max_position_embeddings),
                              !model.device().is_cpu())) {}

GenerateResult Conversation::generate(std::span<const std::int64_t> tokens,
                                      const GenerateOptions& options) {
  const auto same = std::mismatch(held_.begin(), held_.end(), tokens.begin(), tokens.end());
  auto kept = same.first - held_.begin();
  // One has to be run for its logits.
  if (kept == std::ssize(tokens)) kept = std::max<std::ptrdiff_t>(0, kept - 1);
  cache_.truncate(0, kept);
  held_.clear();
  const std::vector<std::vector<std::int64_t>> prompts{{tokens.begin(), tokens.end()}};
  try {
    GenerateResult result = lm::generate(model_, prompts, options, cache_);
    held_ = prompts[0];
    const auto& added = result.sequences[0].tokens;
    held_.insert(held_.end(), added.begin(), added.end());
    held_.resize(static_cast<std::size_t>(cache_.length(0)));
    return result;
  } catch (...) {
    cache_.truncate(0);
    throw;
  }
}

}  // namespace twell::lm
