#include "twell/findings.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "twell/tuning.h"

namespace twell {

double LayerFindings::density() const {
  if (inputs == 0 || fired.empty()) return 0.0;
  const auto sum = std::accumulate(fired.begin(), fired.end(), std::int64_t{0});
  return static_cast<double>(sum) /
         (static_cast<double>(inputs) * static_cast<double>(fired.size()));
}

bool screen_pays(CpuTier tier, std::optional<double> candidates) {
  const double limit = tuning_of(tier).screen_limit;
  return limit > 0.0 && candidates && *candidates <= limit;
}

NeuronOrder order_of(const LayerFindings& findings, std::span<const bool> finite) {
  require(finite.size() == findings.fired.size(), "order_of", "finite", "expected ",
          findings.fired.size(), " entries, got ", finite.size());
  const auto index = [](std::int64_t neuron) { return static_cast<std::size_t>(neuron); };
  // What must not be hot sorts behind what never fired.
  const auto count = [&](std::int64_t neuron) {
    return finite[index(neuron)] ? findings.fired[index(neuron)] : -1;
  };
  NeuronOrder out;
  out.order.resize(findings.fired.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  std::stable_sort(out.order.begin(), out.order.end(),
                   [&](std::int64_t a, std::int64_t b) { return count(a) > count(b); });
  out.finite = std::count(finite.begin(), finite.end(), true);
  out.rates.reserve(out.order.size());
  for (const std::int64_t neuron : out.order) {
    out.rates.push_back(static_cast<double>(std::max<std::int64_t>(count(neuron), 0)) /
                        static_cast<double>(std::max<std::int64_t>(findings.inputs, 1)));
  }
  return out;
}

}  // namespace twell
