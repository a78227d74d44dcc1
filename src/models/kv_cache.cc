#include "models/kv_cache.h"

#include <fmt/format.h>
#include <torch/types.h>

#include "twell/status.h"

namespace twell::lm {

KvCache::KvCache(std::int64_t layers, std::int64_t slots, std::int64_t kv_heads,
                 std::int64_t capacity, std::int64_t head_dim, at::ScalarType dtype)
    : capacity_(capacity) {
  if (slots < 1 || capacity < 1) {
    throw Error(
        ErrorKind::invalid_argument, "KvCache",
        fmt::format("slots and capacity must be at least 1, got {} and {}", slots, capacity));
  }
  lengths_.assign(static_cast<std::size_t>(slots), 0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    keys_.push_back(at::empty({slots, kv_heads, capacity, head_dim}, at::TensorOptions(dtype)));
    values_.push_back(at::empty({slots, kv_heads, capacity, head_dim}, at::TensorOptions(dtype)));
  }
}

std::int64_t KvCache::bytes() const {
  std::int64_t total = 0;
  for (const auto& k : keys_) total += 2 * static_cast<std::int64_t>(k.nbytes());
  return total;
}

void KvCache::truncate(std::int64_t slot, std::int64_t length) {
  if (slot < 0 || slot >= slots() || length < 0 || length > this->length(slot)) {
    throw Error(ErrorKind::invalid_argument, "KvCache::truncate",
                fmt::format("no slot {} with at least {} tokens", slot, length));
  }
  lengths_[static_cast<std::size_t>(slot)] = length;
}

void KvCache::advance(std::int64_t slot, std::int64_t tokens) {
  lengths_[static_cast<std::size_t>(slot)] += tokens;
}

}  // namespace twell::lm
