// The parts of the benchmark, and what they share. Each writes a line a variant into the report and
// prints what it found.
#pragma once

#include <functional>
#include <string>

#include "cuda/bench/blas_gemm.h"
#include "cuda/bench/options.h"
#include "cuda/bench/report.h"
#include "cuda/bench/timer.h"
#include "cuda/bench/variants.h"
#include "twell/cuda.h"

namespace twell::bench {

struct Ceilings {
  double bytes = 0.0;  // a second, of the faster copy
  double flops = 0.0;  // a second, bf16, of cuBLAS at 8192 cubed
};

struct Bench {
  Bench(const Options& options_, const cuda::Device& device_)
      : options(options_),
        device(device_),
        report(options.json),
        timer(device),
        blas(timer.stream()) {}

  const Options options;
  const cuda::Device device;
  Report report;
  Timer timer;
  Blas blas;
  Ceilings ceilings;
  int failed = 0;  // variants that were wrong or did not run
};

// Runs one variant. An error becomes a line of the report and the next variant has its turn, unless
// the GPU is past use.
void guarded(Bench& bench, const std::string& variant, const std::function<void()>& work);

void measure_ceilings(Bench& bench);
void check_exact(Bench& bench);
void measure_layers(Bench& bench);
void measure_training(Bench& bench);
void sweep(Bench& bench);
// Each prints what it decides, then a table.
void probe_gate(Bench& bench);
void probe_rows(Bench& bench);
void probe_graph(Bench& bench);

}  // namespace twell::bench
