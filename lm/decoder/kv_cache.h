// Keys and values of earlier tokens, reserved once. A slot holds one sequence.
//
// A head's keys lie one after the other with room for somewhat more tokens than there are, not for
// the whole capacity: the memory in use is then dense, and capacity that nobody uses is never
// touched, whatever the size of a page. The room grows in place as sequences do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace twell::lm {

class KvCache {
 public:
  // Keys and values of `layers` layers, each [slots, kv_heads, capacity, head_dim] of `dtype` at
  // most. Memory is reserved, not touched, so unused capacity costs address space only.
  // fixed: the room is the capacity from the beginning and nothing ever moves, as on a GPU, where
  // recorded steps hold the addresses. Then memory is touched at once, and zero.
  KvCache(std::int64_t layers, std::int64_t slots, std::int64_t kv_heads, std::int64_t capacity,
          std::int64_t head_dim, const at::TensorOptions& options, bool fixed = false);

  bool fixed() const { return fixed_; }

  std::int64_t slots() const { return static_cast<std::int64_t>(lengths_.size()); }
  std::int64_t capacity() const { return capacity_; }
  std::int64_t bytes() const;
  // Tokens stored in a slot: the position of its next token.
  std::int64_t length(std::int64_t slot) const { return lengths_[static_cast<std::size_t>(slot)]; }
  // Forgets tokens from `length` on (0: all of them).
  void truncate(std::int64_t slot, std::int64_t length = 0);

  // For the model. Before a forward pass: makes room for `tokens` more in a slot, at most up to
  // the capacity.
  void reserve(std::int64_t slot, std::int64_t tokens);
  // A layer as it lies now, valid until the next reserve(): [slots, kv_heads, room, head_dim]. Rows
  // behind a slot's length may be anything, unless the cache is fixed: then they are finite.
  at::Tensor keys(std::int64_t layer) const { return view(keys_, layer); }
  at::Tensor values(std::int64_t layer) const { return view(values_, layer); }
  // After it.
  void advance(std::int64_t slot, std::int64_t tokens);

 private:
  at::Tensor view(const std::vector<at::Tensor>& buffers, std::int64_t layer) const;
  void grow(std::int64_t tokens);

  std::vector<at::Tensor> keys_, values_;  // flat, one a layer
  std::vector<std::int64_t> lengths_;
  std::int64_t kv_heads_, capacity_, head_dim_;
  std::int64_t room_ = 0;
  bool fixed_;
};

}  // namespace twell::lm
