// What a feed-forward layer costs, dense and sparse, by number of inputs and density, and which
// path a call should take. Both paths are exact: a choice costs time and changes no result.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twell/device.h"
#include "twell/ffn.h"

#pragma GCC visibility push(default)
namespace twell {

// The factors of the built-in figures for a number of inputs: above 1 is slower than built in.
struct CostScale {
  std::int64_t tokens = 0;
  double dense = 1.0, sparse = 1.0;
};

struct CostModel {
  std::string measured_on;           // a machine's or GPU's name; empty: not measured here
  bool gated = true;                 // whether the measured layer has a gate
  std::vector<std::int64_t> tokens;  // ascending
  std::vector<double> densities;     // ascending from 0 to 1: non-zeros / H
  // Nanoseconds per call and H · D; dense [tokens], sparse [tokens][densities].
  std::vector<double> dense;
  std::vector<std::vector<double>> sparse;
  // For the timed tokens, ascending; the last one also scales larger numbers. Empty: not scaled.
  std::vector<CostScale> scales = {};

  // Microseconds of one call. Interpolated in the logarithm of tokens, proportional to tokens
  // beyond the last measured number; linear in density.
  double dense_us(std::int64_t rows, const FfnShape& shape) const;
  double sparse_us(std::int64_t rows, double density, const FfnShape& shape) const;
  // How much faster sparse has to be expected to be. Unlike the dense time, the sparse time depends
  // on which neurons fire and on what is left in the last cache. 10 % by another machine's figures,
  // 2 % by those of this machine.
  double margin() const { return measured_on.empty() && scales.empty() ? 1.1 : 1.02; }
  // `hot`: the share of the sparse time that is left if hot neurons are multiplied densely (GPU).
  bool prefers_dense(std::int64_t rows, double density, const FfnShape& shape,
                     double hot = 1.0) const {
    return dense_us(rows, shape) < margin() * hot * sparse_us(rows, density, shape);
  }
  // Where the figures are from, and their factors, in words.
  std::string source() const;
};

// The figures of TierTuning::cost, measured on another machine.
CostModel built_in_cost_model(CpuTier tier);

// The moving average, over calls, of a share of a layer's neurons, such as those that fire.
class MovingShare {
 public:
  // `neurons`: H.
  explicit MovingShare(std::int64_t neurons) : neurons_(static_cast<double>(neurons)) {}

  // Adds a call: `count` of its rows · H neurons. A call of no rows counts for nothing.
  void saw(std::int64_t count, std::int64_t rows);
  // None before the first.
  std::optional<double> value() const { return share_; }

 private:
  double neurons_;
  std::optional<double> share_;
};

// Chooses sparse or dense for a layer that can run on both paths, by what each is expected to cost
// at the density of earlier calls.
class PathChooser {
 public:
  PathChooser(CostModel cost, const FfnShape& shape);

  // Whether a call of so many rows is expected to be faster dense; false until a density was seen.
  // `hot`: as in CostModel::prefers_dense().
  bool dense(std::int64_t rows, double hot = 1.0) const;
  // Whether to count the next call. A count costs a few per cent of a small call, so only the first
  // two, the first after a recording (whose replays are not seen) and every sixteenth are counted.
  // `recording`: this call is only recorded, on a GPU, and not counted.
  bool samples(bool recording = false);
  // Non-zeros of the gate in a call of `rows` rows.
  void saw(std::int64_t nnz, std::int64_t rows) { density_.saw(nnz, rows); }
  // Uses another cost from now on.
  void set_cost(CostModel cost) { cost_ = std::move(cost); }
  const CostModel& cost() const { return cost_; }
  // Moving average of the calls that were counted; none before the first.
  std::optional<double> density() const { return density_.value(); }
  std::string describe() const;  // which path is taken when, in words

 private:
  CostModel cost_;
  FfnShape shape_;
  MovingShare density_;
  std::int64_t calls_ = 0;
  bool recorded_ = false;
};

}  // namespace twell
#pragma GCC visibility pop
