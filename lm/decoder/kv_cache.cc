#include "decoder/kv_cache.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>

#include "twell/status.h"

namespace twell::lm {
namespace {

// Room in steps of 64 tokens and at least an eighth of what is there: moving everything once a step
// then costs a few per cent of the reading that the tokens of a step do.
std::int64_t rounded_room(std::int64_t tokens, std::int64_t capacity) {
  constexpr std::int64_t kStep = 64;
  const std::int64_t step = std::max(kStep, tokens / (8 * kStep) * kStep);
  return std::min(capacity, (tokens + step - 1) / step * step);
}

// Heads of `from` bytes each become heads of `to` > from.
void spread(std::byte* data, std::int64_t heads, std::size_t from, std::size_t to) {
  for (std::int64_t h = heads; h-- > 0;) {
    const auto head = static_cast<std::size_t>(h);
    std::memmove(data + head * to, data + head * from, from);
  }
}

}  // namespace

KvCache::KvCache(std::int64_t layers, std::int64_t slots, std::int64_t kv_heads,
                 std::int64_t capacity, std::int64_t head_dim, const at::TensorOptions& options,
                 bool fixed)
    : kv_heads_(kv_heads),
      capacity_(capacity),
      head_dim_(head_dim),
      room_(fixed ? capacity : 0),
      fixed_(fixed) {
  if (slots < 1 || capacity < 1) {
    throw Error(
        ErrorKind::invalid_argument, "KvCache",
        fmt::format("slots and capacity must be at least 1, got {} and {}", slots, capacity));
  }
  lengths_.assign(static_cast<std::size_t>(slots), 0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const std::int64_t size = slots * kv_heads * capacity * head_dim;
    for (auto* buffers : {&keys_, &values_}) {
      buffers->push_back(fixed ? at::zeros({size}, options) : at::empty({size}, options));
    }
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

void KvCache::reserve(std::int64_t slot, std::int64_t tokens) {
  const std::int64_t end = std::min(capacity_, length(slot) + tokens);
  if (end > room_) grow(end);
}

void KvCache::grow(std::int64_t tokens) {
  const std::int64_t room = rounded_room(tokens, capacity_);
  const std::int64_t heads = slots() * kv_heads_;
  const auto layers = static_cast<std::int64_t>(keys_.size());
  at::parallel_for(0, layers, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t layer = begin; layer < end; ++layer) {
      for (auto* buffers : {&keys_, &values_}) {
        const at::Tensor& flat = (*buffers)[static_cast<std::size_t>(layer)];
        const auto row = static_cast<std::size_t>(head_dim_) * flat.element_size();
        spread(static_cast<std::byte*>(flat.mutable_data_ptr()), heads,
               static_cast<std::size_t>(room_) * row, static_cast<std::size_t>(room) * row);
      }
    }
  });
  room_ = room;
}

at::Tensor KvCache::view(const std::vector<at::Tensor>& buffers, std::int64_t layer) const {
  return buffers[static_cast<std::size_t>(layer)]
      .narrow(0, 0, slots() * kv_heads_ * room_ * head_dim_)
      .view({slots(), kv_heads_, room_, head_dim_});
}

void KvCache::advance(std::int64_t slot, std::int64_t tokens) {
  lengths_[static_cast<std::size_t>(slot)] += tokens;
}

}  // namespace twell::lm
