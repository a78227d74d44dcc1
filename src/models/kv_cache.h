// Keys and values of earlier tokens, allocated once. A slot holds one sequence.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace twell::lm {

class KvCache {
 public:
  // Keys and values of `layers` layers, each [slots, kv_heads, capacity, head_dim] of `dtype`.
  // Memory is reserved, not touched, so unused capacity costs address space only.
  KvCache(std::int64_t layers, std::int64_t slots, std::int64_t kv_heads, std::int64_t capacity,
          std::int64_t head_dim, at::ScalarType dtype);

  std::int64_t slots() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t bytes() const;
  // Tokens stored in a slot: the position of its next token.
  std::int64_t length(std::int64_t slot) const { return lengths_[static_cast<std::size_t>(slot)]; }
  // Forgets tokens from `length` on (0: all of them).
  void truncate(std::int64_t slot, std::int64_t length = 0);

  // For the model: the whole buffer of a layer, and the bookkeeping after a forward pass.
  const at::Tensor& keys(std::int64_t layer) const {
    return keys_[static_cast<std::size_t>(layer)];
  }
  const at::Tensor& values(std::int64_t layer) const {
    return values_[static_cast<std::size_t>(layer)];
  }
  void advance(std::int64_t slot, std::int64_t tokens);

 private:
  std::vector<at::Tensor> keys_, values_;
  std::vector<std::int64_t> lengths_;
  std::int64_t capacity_;
};

}  // namespace twell::lm
