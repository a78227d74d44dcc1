// What kernels and library GEMMs are expected to reach, for estimates (cost.cc).
#pragma once

#include <algorithm>
#include <cmath>

#include "twell/cuda.h"

namespace twell::cuda {

// Of a rate, measured on an H100: large library GEMMs; mma.sync beside what wgmma reaches on Hopper
// and later; memory; L2, as gathers and packing read it, whose loads wait for one another (reading
// alone reaches 0.9).
inline constexpr double kLibraryShare = 0.7;
inline constexpr double kMmaShare = 0.6;
inline constexpr double kMmaShareFromHopper = 0.42;
inline constexpr double kMemoryShare = 0.78;
inline constexpr double kL2Share = 0.4;
inline constexpr double kLaunch = 1.2e-6;  // seconds between kernels on a stream
// A gather's reads that wait for one another: counts, slots, Wu, Wd, partial sums; and its start.
inline constexpr double kGatherLatency = 9.5e-6;

// Until the pipeline of a tile GEMM is full, and its epilogue.
inline constexpr double kTileLatency = 8e-6;
// When a screen has been read: sums of warps, bounds, rows of W that wait for them; and each
// candidate: popular neurons are candidates of all tokens, and their block has one after the other.
inline constexpr double kScreenLatency = 10e-6;
inline constexpr double kCandidate = 58e-9;

// Rates of a GPU, and the sizes of a problem as numbers.
struct Figures {
  Figures(const Device& device, const Problem& problem)
      : rates(rates_of(device)),
        memory(kMemoryShare * rates.memory_bytes),
        l2(kL2Share * rates.l2_bytes),
        library(kLibraryShare * rates.tensor_flops),
        tokens(static_cast<double>(problem.tokens)),
        width(static_cast<double>(problem.width)),
        neurons(static_cast<double>(problem.neurons)),
        projections(problem.gated ? 2 : 1) {}

  // A GEMM of `cols` outputs at so many operations a second.
  double gemm(double flops, double cols, double bytes) const {
    return std::max(2 * tokens * width * cols / flops, (2 * width * cols + bytes) / memory) +
           kLaunch;
  }
  double gate() const { return gemm(library, neurons, 2 * tokens * (width + neurons)); }
  // Rows of `weights` matrices, as many as can be distinct, from L2 and once from memory.
  double rows(double share, double weights) const {
    const double gathered = tokens * share * neurons;
    const double distinct = neurons * (1 - std::pow(1 - share, tokens));
    const double row = 2 * weights * width;  // bytes, and operations
    return std::max(
        {gathered * row / rates.gather_flops, gathered * row / l2, distinct * row / memory});
  }
  // Down of so many neurons, at a share of the library's rate; up, and the product with the gate.
  double down(double cols, double share = 1) const {
    return gemm(share * library, cols, 2 * tokens * (width + cols));
  }
  double up(double cols) const {
    return projections == 1 ? 0 : down(cols) + 6 * tokens * cols / memory + kLaunch;
  }

  DeviceRates rates;
  double memory, l2, library, tokens, width, neurons, projections;
};

}  // namespace twell::cuda
