// Findings: what a sample of inputs shows about a feed-forward layer, and what follows from it.
//
// They belong to a model, not to a machine: they are made once and kept beside the checkpoint, and
// every device decides by them. They save time and never change a result.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "twell/device.h"

#pragma GCC visibility push(default)
namespace twell {

// With fewer, a sample does not show in which direction inputs point.
inline constexpr std::int64_t kFewestInputs = 32;

struct LayerFindings {
  std::int64_t inputs = 0;          // the number of inputs that were seen
  std::vector<float> mean;          // [D], their mean: the screen's axis (twell/screen.h)
  std::vector<std::int64_t> fired;  // [H], the number of inputs that fired each neuron
  // Share of the pre-activations that a screen with this axis did not rule out; none if no screen
  // was tried.
  std::optional<double> candidates;

  // Non-zeros / H; 0 of an empty one.
  double density() const;
};

// Whether a screen that leaves this share of the pre-activations makes a tier's gate faster
// (TierTuning::screen_limit). None: no.
bool screen_pays(CpuTier tier, std::optional<double> candidates);

// Neurons sorted by how many inputs fire them, the most popular first. Neurons whose row of down is
// not finite come last: they must not be multiplied densely, since 0 · ∞ would reach inputs that
// did not fire them.
struct NeuronOrder {
  std::vector<std::int64_t> order;  // [H], the checkpoint's numbers
  std::vector<double> rates;        // [H], in this order: share of the inputs that fire them
  std::int64_t finite = 0;          // the first so many have finite rows
};
// finite[n]: whether row n of down is finite. It has an entry for each of findings.fired.
NeuronOrder order_of(const LayerFindings& findings, std::span<const bool> finite);

}  // namespace twell
#pragma GCC visibility pop
