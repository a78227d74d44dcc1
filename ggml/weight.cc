#include "ggml/weight.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <utility>

#include "ggml/ledger.h"
#include "ggml/weights.h"

namespace twell::ggml {
namespace {

// More are as fast in either order.
constexpr std::int64_t kFewTokens = 3;

// Tokens that count as recent. A model is warmed up with a few tokens that fire like no others.
constexpr std::int64_t kRecent = 64;

}  // namespace

Weight::Weight(const ggml_tensor& tensor)
    : tensor_(tensor), is_down_(order_of(tensor) == GgmlOrder::inputs), order_(order_of(tensor)) {}

void Weight::set(const void* data, std::size_t offset, std::size_t size) {
  const std::lock_guard lock(mutex_);
  const std::size_t whole = ggml_nbytes(&tensor_);
  const auto* const bytes = static_cast<const std::byte*>(data);
  if (size == whole) {
    load(bytes);
    return;
  }
  if (partial_.empty()) {
    const bool loaded = form_.packed != nullptr || form_.host != nullptr;
    partial_ = loaded ? blocks() : std::vector<std::byte>(whole);
    there_ = loaded ? whole - size : 0;
  }
  std::memcpy(partial_.data() + offset, bytes, size);
  there_ += size;
  if (there_ < whole) return;
  load(partial_.data());
  partial_ = {};
}

// What cannot be packed, as where a scale is not finite, is left to the host's kernels.
void Weight::load(const std::byte* blocks) {
  form_ = {};
  order_ = is_down_ ? GgmlOrder::inputs : GgmlOrder::outputs;
  try {
    form_.packed = pack(blocks);
    Ledger::get().take(order_, name_of(*format_of(tensor_.type)));
  } catch (const std::exception& error) {
    form_.host = std::make_shared<const HostWeight>(tensor_, blocks);
    Ledger::get().leave(tensor_.name, error.what());
  }
}

Weight::Packed Weight::pack(const std::byte* blocks) const {
  std::vector<GgmlMatrix> packed;
  for (std::int64_t e = 0; e < tensor_.ne[2]; ++e) {
    packed.emplace_back(
        GgmlView{*format_of(tensor_.type), blocks + static_cast<std::size_t>(e) * tensor_.nb[2],
                 tensor_.ne[1], tensor_.ne[0]},
        order_);
  }
  return std::make_shared<const std::vector<GgmlMatrix>>(std::move(packed));
}

std::vector<std::byte> Weight::blocks() const {
  std::vector<std::byte> all(ggml_nbytes(&tensor_));
  if (form_.packed != nullptr) {
    std::byte* to = all.data();
    for (const GgmlMatrix& expert : *form_.packed) {
      expert.unpack(to);
      to += tensor_.nb[2];
    }
  } else {
    ggml_backend_tensor_get(form_.host->tensor(), all.data(), 0, all.size());
  }
  return all;
}

void Weight::get(void* data, std::size_t offset, std::size_t size) const {
  const std::lock_guard lock(mutex_);
  if (form_.packed == nullptr && form_.host == nullptr) {
    std::memset(data, 0, size);
    return;
  }
  if (size == ggml_nbytes(&tensor_) && form_.packed != nullptr && form_.packed->size() == 1) {
    form_.packed->front().unpack(data);
    return;
  }
  std::memcpy(data, blocks().data() + offset, size);
}

Weight::Form Weight::form_for(std::int64_t tokens, double share) {
  const std::lock_guard lock(mutex_);
  ++counts_.calls;
  counts_.tokens += tokens;
  counts_.fired += share * static_cast<double>(tokens);
  const double part = std::min(1.0, static_cast<double>(tokens) / static_cast<double>(kRecent));
  recent_ += counts_.calls == 1 ? share : (share - recent_) * part;
  const bool dense = recent_ > sparse_limit(*format_of(tensor_.type));
  if (order_ == GgmlOrder::inputs && dense && tokens <= kFewTokens && counts_.tokens >= kRecent &&
      form_.packed != nullptr && !stays_) {
    turn();
  }
  return form_;
}

// For good. Without memory for it, it stays as it is.
void Weight::turn() {
  try {
    order_ = GgmlOrder::outputs;
    form_.packed = pack(blocks().data());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "twell: %s stays as it is, and slower than it could be: %s\n",
                 tensor_.name, error.what());
    order_ = GgmlOrder::inputs;
    stays_ = true;
  }
}

void Weight::add_time(double seconds) {
  const std::lock_guard lock(mutex_);
  counts_.seconds += seconds;
}

Weight::Counts Weight::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.sparse = form_.packed != nullptr && order_ == GgmlOrder::inputs;
  return counts;
}

}  // namespace twell::ggml
