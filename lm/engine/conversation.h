// One text that grows by turns: what earlier turns left in the cache is not run again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "decoder/model.h"
#include "engine/generate.h"

namespace twell::lm {

class Conversation {
 public:
  // Of at most `context` tokens. The model outlives this.
  Conversation(Model& model, std::int64_t context);

  // Continues `tokens`, all of the conversation so far. Those that the cache holds from its
  // beginning are not run again. Throws what lm::generate() throws; the cache is then empty.
  GenerateResult generate(std::span<const std::int64_t> tokens, const GenerateOptions& options);

  std::int64_t context() const { return cache_.capacity(); }

 private:
  Model& model_;
  KvCache cache_;
  std::vector<std::int64_t> held_;  // of which tokens it has keys and values
};

}  // namespace twell::lm
