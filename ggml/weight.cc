#include "ggml/weight.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <utility>

#include "ggml/ledger.h"
#include "ggml/weights.h"

namespace twell::ggml {
namespace {

// Shares of inputs above which the host's kernels multiply few rows faster, in the order of
// GgmlFormat. Measured on two Zen 3 cores with AVX2, D = 2560, H = 18432; cautious where a format
// was not timed. More rows are faster packed at any share, but 512 of Q8_0 that all fire (0.9).
constexpr double kLimits[] = {0.5, 0.5, 0.6, 0.6, 0.5, 0.5};
static_assert(std::size(kLimits) == kGgmlFormats);
constexpr std::int64_t kFewTokens = 3;

// Tokens that count as recent. A model is warmed up with a few tokens that fire like no others.
constexpr std::int64_t kRecent = 64;

}  // namespace

Weight::Weight(const ggml_tensor& tensor) : tensor_(tensor), order_(order_of(tensor)) {}

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
  const GgmlFormat format = *format_of(tensor_.type);
  try {
    std::vector<GgmlMatrix> packed;
    for (std::int64_t e = 0; e < tensor_.ne[2]; ++e) {
      packed.emplace_back(GgmlView{format, blocks + static_cast<std::size_t>(e) * tensor_.nb[2],
                                   tensor_.ne[1], tensor_.ne[0]},
                          order_);
    }
    form_.packed = std::make_shared<const std::vector<GgmlMatrix>>(std::move(packed));
    Ledger::get().take(order_, name_of(format));
  } catch (const std::exception& error) {
    form_.host = std::make_shared<const HostWeight>(tensor_, blocks, /*in_rows=*/true);
    Ledger::get().leave(tensor_.name, error.what());
  }
}

std::vector<std::byte> Weight::blocks() const {
  std::vector<std::byte> all(ggml_nbytes(&tensor_));
  if (form_.packed != nullptr) {
    std::byte* to = all.data();
    for (const GgmlMatrix& expert : *form_.packed) {
      expert.unpack(to);
      to += tensor_.nb[2];
    }
  } else if (form_.host != nullptr && form_.host->readable()) {
    ggml_backend_tensor_get(form_.host->tensor(), all.data(), 0, all.size());
  } else {
    GGML_ABORT("twell: %s: the CPU backend has it in a layout that it does not give back",
               tensor_.name);
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
  const bool dense = order_ == GgmlOrder::inputs &&
                     recent_ > kLimits[static_cast<std::size_t>(*format_of(tensor_.type))];
  if (dense && tokens <= kFewTokens && counts_.tokens >= kRecent && form_.packed != nullptr &&
      !stays_packed_) {
    take_to_host();
  }
  return form_;
}

// For good. Without memory for it, it stays as it is.
void Weight::take_to_host() {
  try {
    form_ = {nullptr,
             std::make_shared<const HostWeight>(tensor_, blocks().data(), /*in_rows=*/false)};
  } catch (const std::exception& error) {
    std::fprintf(stderr, "twell: %s stays packed, and slower than it could be: %s\n", tensor_.name,
                 error.what());
    stays_packed_ = true;
  }
}

void Weight::add_time(double seconds) {
  const std::lock_guard lock(mutex_);
  counts_.seconds += seconds;
}

Weight::Counts Weight::counts() const {
  const std::lock_guard lock(mutex_);
  Counts counts = counts_;
  counts.packed = form_.packed != nullptr;
  return counts;
}

}  // namespace twell::ggml
