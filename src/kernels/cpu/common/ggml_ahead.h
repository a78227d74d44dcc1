// What a row's product with a GgmlMatrix in GgmlOrder::inputs reads next.
#pragma once

#include <algorithm>
#include <cstdint>

#include "format/ggml_layout.h"
#include "kernels/kernel.h"

namespace twell {
namespace {

// Brings what the next span reads to the cache, evenly over this span's chunks. To L2, which
// takes twice as many lines at a time as L1 (0.33 ms for 0.56 on two Zen 4 cores, 20 % of Q4_K).
template <GgmlFormat kFormat>
class GgmlAhead {
  static constexpr GgmlTraits kTraits = traits_of(kFormat);
  static constexpr std::int64_t kSpan = GgmlLayout::kSpan;
  static constexpr std::int64_t kBlocks = kSpan / kTraits.numbers;
  static constexpr std::int64_t kGroups = kSpan / kTraits.group;

 public:
  GgmlAhead(const GgmlLayout& layout, const std::uint8_t* memory, const GgmlInputRow& h,
            std::int64_t at, std::int64_t first, std::int64_t last) {
    if (at >= layout.inputs) return;
    const std::int64_t chunks = last - first, end = std::min(at + kSpan, layout.inputs);
    const auto add = [&](std::int64_t from, std::int64_t bytes) {
      const std::uint8_t* const begin = memory + from;
      parts_[count_++] = {begin, begin + chunks * bytes};
      lines_ += (chunks * bytes + kLine - 1) / kLine;
    };
    for (std::int64_t b = at / kTraits.numbers; b < end / kTraits.numbers; ++b) {
      if (has_fired(h, b * kTraits.numbers, kTraits.numbers)) {
        add(layout.scale_at(b, first), layout.scale_bytes());
      }
    }
    constexpr std::int64_t kInputs = 2 * kTraits.group;  // of a pair
    for (std::int64_t p = at / kInputs; kTraits.sub_scales && p < end / kInputs; ++p) {
      if (has_fired(h, p * kInputs, kInputs)) {
        add(layout.pair_at(p, first), layout.pair_bytes());
      }
    }
    for (std::int32_t i = h.starts[at / kTraits.group]; i < h.starts[end / kTraits.group]; ++i) {
      add(layout.code_at(h.fired[i], first), layout.code_bytes());
    }
    lines_ = (lines_ + chunks - 1) / chunks;
    if (count_ > 0) line_ = parts_[0].begin;
  }
  void fetch() {
    for (std::int64_t i = 0; i < lines_ && now_ < count_; ++i) {
      __builtin_prefetch(line_, 0, 2);
      line_ += kLine;
      if (line_ >= parts_[now_].end) line_ = parts_[++now_].begin;
    }
  }

 private:
  static constexpr std::int64_t kLine = 64;
  struct Part {
    const std::uint8_t* begin;
    const std::uint8_t* end;
  };
  static bool has_fired(const GgmlInputRow& h, std::int64_t first, std::int64_t count) {
    return h.starts[first / kTraits.group] < h.starts[(first + count) / kTraits.group];
  }
  // One more, which the last line goes on to.
  Part parts_[kSpan + kGroups / 2 + kBlocks + 1];
  std::int64_t count_ = 0, now_ = 0;
  std::int64_t lines_ = 0;  // for each chunk
  const std::uint8_t* line_ = nullptr;
};

}  // namespace
}  // namespace twell
