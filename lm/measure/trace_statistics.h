// What a trace of activity says of a layer: how often its neurons fire, and how many of them a
// window of tokens fires together. Without PyTorch.
//
// A kernel that reads a neuron's weights once for a window of tokens reads as many as the union of
// their neurons. It gains where tokens share neurons, that is where firings are more than neurons
// of the union. Popular neurons are shared in any order of tokens; the others are what an order has
// to bring together, so they are counted by themselves as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "files/activity_trace.h"

namespace twell::lm {

// Neurons that fire for at least this share of the tokens are hot, the others are cold. From about
// here on a GPU multiplies a neuron faster for all tokens than for those that fire it.
inline constexpr double kHotShare = 0.0095;

// How often the neurons of a layer fired.
class NeuronFirings {
 public:
  // `counts` [H]: tokens that fired each neuron, of `tokens`.
  NeuronFirings(std::span<const std::int64_t> counts, std::int64_t tokens,
                double hot_share = kHotShare);
  // The ids of `rows` are below `neurons`.
  NeuronFirings(const io::ActivityRows& rows, std::uint32_t neurons, double hot_share = kHotShare);

  std::int64_t tokens() const { return tokens_; }
  std::int64_t firings() const { return firings_; }
  std::size_t neurons() const { return cold_.size(); }  // H
  // Tokens that fired each neuron that fired at all, the most popular one first.
  std::span<const std::int64_t> sorted() const { return sorted_; }
  // Shares of the neurons.
  double never() const;  // that fired for no token
  double hot() const;
  // Share of the firings that the hot neurons make; 0 where none fired.
  double hot_firings() const;
  double cold_nnz() const;  // firings of cold neurons, of a token
  // Share of the firings that the most popular neurons make, `share` of all neurons. Linear within
  // a neuron: a hundredth of a layer need not be a whole number of them.
  double top(double share) const;
  bool is_cold(std::uint32_t neuron) const { return cold_[neuron]; }

 private:
  std::int64_t tokens_ = 0, firings_ = 0, hot_ = 0, hot_firings_ = 0;
  std::vector<bool> cold_;  // [H]
  std::vector<std::int64_t> sorted_;
};

// Orders of `tokens` tokens: what stands first, second, ...
using TokenOrder = std::vector<std::uint32_t>;
TokenOrder text_order(std::size_t tokens);
TokenOrder order_by_id(std::span<const std::uint32_t> token_ids);  // equal ones as in the text
TokenOrder random_order(std::size_t tokens, std::uint64_t seed);

// Of consecutive windows of so many tokens. Those left over at the end are in no window.
struct WindowUnion {
  std::int64_t windows = 0;
  // Neurons that fire for any token of a window, mean over windows; 0 where there is no window.
  double neurons = 0, cold_neurons = 0;
  // Firings over neurons of the union, of all windows together: for how many of its tokens a neuron
  // fires that fires for any. NaN where none fires.
  double sharing = 0, cold_sharing = 0;
};
// `order` has tokens of `rows`, `firings` are those of the same layer.
WindowUnion window_union(const io::ActivityRows& rows, const NeuronFirings& firings,
                         std::span<const std::uint32_t> order, std::size_t window);

}  // namespace twell::lm
