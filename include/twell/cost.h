// What a feed-forward layer costs, dense and sparse, by inputs and density; and which of the two a
// call had better take. Exact either way: a choice costs time, never a result.
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

// What built-in figures of a number of inputs were multiplied by: above 1 is slower than built in.
struct CostScale {
  std::int64_t tokens = 0;
  double dense = 1.0, sparse = 1.0;
};

struct CostModel {
  std::string measured_on;           // a machine's or GPU's name; empty: not measured here
  bool gated = true;                 // the layer that the figures are of
  std::vector<std::int64_t> tokens;  // ascending
  std::vector<double> densities;     // ascending from 0 to 1: non-zeros / H
  // Nanoseconds per call and H · D; dense [tokens], sparse [tokens][densities].
  std::vector<double> dense;
  std::vector<std::vector<double>> sparse;
  // Of the timed tokens, ascending; the last one's also scales what lies beyond. Empty: not scaled.
  std::vector<CostScale> scales = {};

  // Microseconds of one call. Between measured tokens interpolated in their logarithm, beyond the
  // last proportional to them; linear in density.
  double dense_us(std::int64_t rows, const FfnShape& shape) const;
  double sparse_us(std::int64_t rows, double density, const FfnShape& shape) const;
  // How much faster sparse has to be expected: unlike the dense time, its time depends on which
  // neurons fire and on what is left of the last cache. 10 % by another machine's figures, 2 % by
  // this one's.
  double margin() const { return measured_on.empty() && scales.empty() ? 1.1 : 1.02; }
  // `hot`: what multiplying hot neurons densely leaves of the sparse time, on a GPU.
  bool prefers_dense(std::int64_t rows, double density, const FfnShape& shape,
                     double hot = 1.0) const {
    return dense_us(rows, shape) < margin() * hot * sparse_us(rows, density, shape);
  }
  // Where the figures are from, and what they were multiplied by, in words.
  std::string source() const;
};

// TierTuning::cost: of another machine.
CostModel built_in_cost_model(CpuTier tier);

// The moving average, over calls, of the share of a layer's neurons that something was true of.
class MovingShare {
 public:
  // `neurons`: H.
  explicit MovingShare(std::int64_t neurons) : neurons_(static_cast<double>(neurons)) {}

  // Of rows · H neurons so many. A call of no rows counts for nothing.
  void saw(std::int64_t count, std::int64_t rows);
  // None before the first.
  std::optional<double> value() const { return share_; }

 private:
  double neurons_;
  std::optional<double> share_;
};

// Sparse or dense, for a layer that can be run either way: what each is expected to cost at the
// density that earlier calls had.
class PathChooser {
 public:
  PathChooser(CostModel cost, const FfnShape& shape);

  // Whether a call of so many rows is expected to be faster dense; false while nothing was seen.
  // `hot`: as in CostModel::prefers_dense().
  bool dense(std::int64_t rows, double hot = 1.0) const;
  // Whether the next call is one to be counted. A count costs a few per cent of a small call: the
  // first two, the first one after a recording, whose replays are not seen, and then one of 16.
  // `recording`: this call is only recorded, on a GPU, and not counted.
  bool samples(bool recording = false);
  // Non-zeros of the gate in a call of `rows` rows.
  void saw(std::int64_t nnz, std::int64_t rows) { density_.saw(nnz, rows); }
  // From now on goes by another cost.
  void set_cost(CostModel cost) { cost_ = std::move(cost); }
  const CostModel& cost() const { return cost_; }
  // Moving average of the calls that were counted; none before the first.
  std::optional<double> density() const { return density_.value(); }
  std::string describe() const;  // what is taken when, in words

 private:
  CostModel cost_;
  FfnShape shape_;
  MovingShare density_;
  std::int64_t calls_ = 0;
  bool recorded_ = false;
};

}  // namespace twell
#pragma GCC visibility pop
