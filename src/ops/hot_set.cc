#include "ops/hot_set.h"

#include <algorithm>

#include "ops/scratch.h"

namespace twell {

HotSet::HotSet(Context& context, std::int64_t neurons)
    : neurons_(neurons),
      counts_(static_cast<std::int32_t*>(context.scratch(
          0, kHotLists, static_cast<std::size_t>(3 * neurons) * sizeof(std::int32_t)))),
      list_(counts_ + neurons),
      place_(list_ + neurons) {}

void HotSet::choose(Team& team, double least, std::initializer_list<Weight> finite) {
  constexpr std::int32_t kOut = -1;
  team.single([&] {
    size_ = 0;
    for (std::int64_t n = 0; n < neurons_; ++n) {
      if (counts_[n] >= least) list_[size_++] = static_cast<std::int32_t>(n);
    }
  });
  team.for_static(size_, [&](std::int64_t i) {
    const std::int32_t neuron = list_[i];
    for (const Weight& w : finite) {
      if (!w.row_finite(neuron)) list_[i] = kOut;
    }
  });
  team.single([&] {
    const auto* end = std::remove(list_, list_ + size_, kOut);
    size_ = end - list_;
    if (size_ < kPanel) size_ = 0;
    if (size_ > 0) std::fill_n(place_, neurons_, kOut);
    for (std::int64_t i = 0; i < size_; ++i) place_[list_[i]] = static_cast<std::int32_t>(i);
  });
}

}  // namespace twell
