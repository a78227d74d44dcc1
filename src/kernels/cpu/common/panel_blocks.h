// The order in which a GEMM takes the panels of a column block, cut into blocks of depth.
#pragma once

#include <cstdint>

namespace twell {
namespace {

// A first panel, and a block of depth.
struct PanelBlock {
  std::int64_t panel, block;
};

// f<panels>(this, next) for `Most` panels at a time, then one by one; the last one's next is the
// panel after the column block. From end to end they are taken as they lie in memory, which is best
// where each is read once. Else all panels share a block of depth, so that its x stays in a cache.
template <int Most, class F>
void for_panel_blocks(std::int64_t panels, std::int64_t blocks, bool end_to_end, F f) {
  const std::int64_t full = panels / Most, groups = full + panels % Most;
  const std::int64_t outer = end_to_end ? groups : blocks, inner = end_to_end ? blocks : groups;
  const auto place = [=](std::int64_t o, std::int64_t i) -> PanelBlock {
    const std::int64_t group = end_to_end ? o : i;
    return {group < full ? group * Most : full * Most + group - full, end_to_end ? i : o};
  };
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::int64_t i = 0; i < inner; ++i) {
      const PanelBlock at = place(o, i);
      const PanelBlock next = i + 1 < inner   ? place(o, i + 1)
                              : o + 1 < outer ? place(o + 1, 0)
                                              : PanelBlock{panels, 0};
      if constexpr (Most > 1) {
        if (at.panel < full * Most) {
          f.template operator()<Most>(at, next);
          continue;
        }
      }
      f.template operator()<1>(at, next);
    }
  }
}

}  // namespace
}  // namespace twell
