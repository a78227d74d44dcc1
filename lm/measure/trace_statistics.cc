#include "measure/trace_statistics.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

namespace twell::lm {
namespace {

std::vector<std::int64_t> count_firings(const io::ActivityRows& rows, std::uint32_t neurons) {
  std::vector<std::int64_t> counts(neurons, 0);
  for (const std::uint32_t neuron : rows.neurons) ++counts[neuron];
  return counts;
}

double ratio(double part, double whole, double of_nothing) {
  return whole > 0 ? part / whole : of_nothing;
}

}  // namespace

NeuronFirings::NeuronFirings(std::span<const std::int64_t> counts, std::int64_t tokens,
                             double hot_share)
    : tokens_(tokens), cold_(counts.size(), true) {
  const double least = hot_share * static_cast<double>(tokens);
  for (std::size_t n = 0; n < counts.size(); ++n) {
    if (counts[n] == 0) continue;  // not hot, even where the threshold is zero
    sorted_.push_back(counts[n]);
    firings_ += counts[n];
    if (static_cast<double>(counts[n]) < least) continue;
    cold_[n] = false;
    ++hot_;
    hot_firings_ += counts[n];
  }
  std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
}

NeuronFirings::NeuronFirings(const io::ActivityRows& rows, std::uint32_t neurons, double hot_share)
    : NeuronFirings(count_firings(rows, neurons), static_cast<std::int64_t>(rows.rows()),
                    hot_share) {}

double NeuronFirings::never() const {
  return ratio(static_cast<double>(neurons() - sorted_.size()), static_cast<double>(neurons()), 0);
}

double NeuronFirings::hot() const {
  return ratio(static_cast<double>(hot_), static_cast<double>(neurons()), 0);
}

double NeuronFirings::hot_firings() const {
  return ratio(static_cast<double>(hot_firings_), static_cast<double>(firings_), 0);
}

double NeuronFirings::cold_nnz() const {
  return ratio(static_cast<double>(firings_ - hot_firings_), static_cast<double>(tokens_), 0);
}

double NeuronFirings::top(double share) const {
  const double wanted = std::clamp(share, 0.0, 1.0) * static_cast<double>(neurons());
  const std::size_t whole = std::min(static_cast<std::size_t>(wanted), sorted_.size());
  const auto end = sorted_.begin() + static_cast<std::ptrdiff_t>(whole);
  auto sum = static_cast<double>(std::accumulate(sorted_.begin(), end, std::int64_t{0}));
  if (whole < sorted_.size()) {
    sum += (wanted - static_cast<double>(whole)) * static_cast<double>(sorted_[whole]);
  }
  return ratio(sum, static_cast<double>(firings_), 0);
}

TokenOrder text_order(std::size_t tokens) {
  TokenOrder order(tokens);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

TokenOrder order_by_id(std::span<const std::uint32_t> token_ids) {
  TokenOrder order = text_order(token_ids.size());
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return token_ids[a] < token_ids[b]; });
  return order;
}

TokenOrder random_order(std::size_t tokens, std::uint64_t seed) {
  TokenOrder order = text_order(tokens);
  std::mt19937_64 random(seed);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

WindowUnion window_union(const io::ActivityRows& rows, const NeuronFirings& firings,
                         std::span<const std::uint32_t> order, std::size_t window) {
  WindowUnion out;
  std::vector<std::uint32_t> last_window(firings.neurons(), 0);  // that fired a neuron, from 1
  std::int64_t fired = 0, cold_fired = 0, neurons = 0, cold_neurons = 0;
  std::uint32_t number = 0;
  for (std::size_t first = 0; window > 0 && window <= order.size() - first; first += window) {
    ++number;
    for (const std::uint32_t token : order.subspan(first, window)) {
      for (const std::uint32_t neuron : rows.row(token)) {
        const bool cold = firings.is_cold(neuron);
        const bool is_new = last_window[neuron] != number;
        last_window[neuron] = number;
        ++fired;
        cold_fired += cold ? 1 : 0;
        neurons += is_new ? 1 : 0;
        cold_neurons += is_new && cold ? 1 : 0;
      }
    }
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  out.windows = number;
  out.neurons = ratio(static_cast<double>(neurons), number, 0);
  out.cold_neurons = ratio(static_cast<double>(cold_neurons), number, 0);
  out.sharing = ratio(static_cast<double>(fired), static_cast<double>(neurons), kNone);
  out.cold_sharing =
      ratio(static_cast<double>(cold_fired), static_cast<double>(cold_neurons), kNone);
  return out;
}

}  // namespace twell::lm
