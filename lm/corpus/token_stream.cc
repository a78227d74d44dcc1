#include "corpus/token_stream.h"

#include <algorithm>
#include <utility>

#include "files/file_error.h"

namespace twell::lm {

TokenStream::TokenStream(std::vector<std::int32_t> ids)
    : ids_(std::make_shared<const std::vector<std::int32_t>>(std::move(ids))),
      size_(static_cast<std::int64_t>(ids_->size())) {}

TokenStream::TokenStream(std::vector<io::TokenShard> shards)
    : shards_(std::make_shared<const std::vector<io::TokenShard>>(std::move(shards))) {
  for (const io::TokenShard& shard : *shards_) size_ += static_cast<std::int64_t>(shard.size());
}

void TokenStream::read(std::int64_t first, std::span<std::int64_t> out) const {
  if (first < 0 || static_cast<std::int64_t>(out.size()) > size_ - first) {
    io::fail_argument("TokenStream::read", "ids {} and {} more: the stream has {}", first,
                      out.size(), size_);
  }
  if (ids_) {
    std::copy_n(ids_->begin() + first, out.size(), out.begin());
    return;
  }
  auto at = static_cast<std::uint64_t>(first);
  for (const io::TokenShard& shard : *shards_) {
    if (out.empty()) return;
    if (at >= shard.size()) {
      at -= shard.size();
      continue;
    }
    const auto part = std::min<std::uint64_t>(out.size(), shard.size() - at);
    shard.read(at, out.first(part));
    out = out.subspan(part);
    at = 0;
  }
}

std::int64_t TokenStream::largest() const {
  std::vector<std::int64_t> some(1 << 16);
  std::int64_t out = -1;
  for (std::int64_t at = 0; at < size_;) {
    const auto count = std::min(size_ - at, static_cast<std::int64_t>(some.size()));
    read(at, std::span(some).first(static_cast<std::size_t>(count)));
    out = std::max(out, *std::max_element(some.begin(), some.begin() + count));
    at += count;
  }
  return out;
}

}  // namespace twell::lm
