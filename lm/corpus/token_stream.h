// One sequence of token ids from token shards, or from memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tokenizer/token_shard.h"

namespace twell::lm {

// Cheap to copy (shared).
class TokenStream {
 public:
  explicit TokenStream(std::vector<std::int32_t> ids);
  explicit TokenStream(std::vector<io::TokenShard> shards);  // one after the other

  std::int64_t size() const { return size_; }
  // Copies ids [first, first + out.size()). Throws Error where that goes beyond the end, or an id
  // of a shard is not below its vocabulary.
  void read(std::int64_t first, std::span<std::int64_t> out) const;
  std::int64_t largest() const;  // id; reads all. Negative where the stream is empty

 private:
  std::shared_ptr<const std::vector<std::int32_t>> ids_;
  std::shared_ptr<const std::vector<io::TokenShard>> shards_;
  std::int64_t size_ = 0;
};

}  // namespace twell::lm
