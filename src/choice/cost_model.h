// What a feed-forward layer costs, dense and sparse, by tokens and density: measured on this
// machine by `twell calibrate`, or the built-in figures of another, scaled (scaled_cost.h) or not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "twell/ffn.h"

namespace twell::lm {

// What built-in figures of a number of tokens were multiplied by: above 1 is slower than built in.
struct CostScale {
  std::int64_t tokens = 0;
  double dense = 1.0, sparse = 1.0;
};

struct CostModel {
  std::string measured_on;           // as machine_key(), or a GPU's name; empty: not measured here
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
  // The choice of FfnPath::automatic. Sparse has to be expected 10 % faster: unlike the dense time,
  // its time depends on which neurons fire and on what is left of the last cache.
  static constexpr double kMargin = 1.1;
  // `hot`: what hot neurons leave of the sparse time (HotNeurons::time).
  bool prefers_dense(std::int64_t rows, double density, const FfnShape& shape,
                     double hot = 1.0) const {
    return dense_us(rows, shape) < kMargin * hot * sparse_us(rows, density, shape);
  }
  // Where the figures are from, and what they were multiplied by, in words.
  std::string source() const;
};

// "AMD EPYC, avx512, 2 threads": what a measurement holds for.
std::string machine_key(CpuTier tier, int threads);

CostModel built_in_cost_model(CpuTier tier);  // TierTuning::cost
// This machine's, if its file has it, else the built-in one. Throws twell::Error (environment)
// naming the file where it is damaged.
CostModel load_cost_model(CpuTier tier, int threads);
// Throws where save_cost_model() would: the file cannot be written, or holds something else.
void check_calibration_file();
// Adds to the file, or replaces, the figures of `model.measured_on`; written atomically.
void save_cost_model(const CostModel& model);

// $TWELL_CALIBRATION, else twell/calibration.json in the user's cache folder ($XDG_CACHE_HOME or
// ~/.cache). Empty where there is none, or the variable is empty: nothing is loaded.
std::filesystem::path calibration_file();
// False where TWELL_CALIBRATION is set to nothing: built-in figures are then taken as they are.
bool built_in_figures_are_scaled();

}  // namespace twell::lm
