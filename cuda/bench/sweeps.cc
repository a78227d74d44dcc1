// Every shape of the gate GEMM and every number of splits of the gather: what the plans' estimates
// are to be corrected by.
#include <algorithm>
#include <cstdio>

#include "cuda/bench/bench.h"
#include "cuda/bench/device_layer.h"
#include "cuda/bench/gate_rate.h"
#include "cuda/bench/layer_parts.h"

namespace twell::bench {
namespace {

void measure_shape(Bench& bench, const ShapeCase& one, const DeviceLayer& layer) {
  cuda::Problem problem = layer.problem(one.tokens);
  problem.screened = one.shape == cuda::GemmShape::screen32x32;
  const cuda::FfnPlan plan = cuda::plan_ffn(bench.device, problem, kPlenty, one.shape);
  const cuda::GemmPlan& gemm = plan.gemm;
  if (gemm.shared_bytes > bench.device.shared_bytes) {
    bench.report.add({{"kind", "gate_shape"},
                      {"variant", one.name},
                      {"skipped", "more shared memory than there is"}});
    return;
  }
  const LayerParts parts(bench.device, layer, one.tokens, plan, bench.timer.stream());
  const double us = bench.timer.measure(bench.options.runs, [&] { parts.gate(); }).median_us;
  const double flops_per_s =
      2.0 * static_cast<double>(one.tokens * layer.width * layer.neurons) / (us * 1e-6);
  std::printf("%-34s %10.1f us %8.0f TFLOP/s\n", one.name.c_str(), us, flops_per_s * 1e-12);
  Line line = {{"kind", "gate_shape"},
               {"variant", one.name},
               {"tokens", one.tokens},
               {"shape", cuda::name_of(one.shape)},
               {"us", us},
               {"flops_per_s", flops_per_s},
               {"assumed_us", 1e6 * assumed_seconds(bench.device, problem, gemm)},
               {"planned", takes(bench.device, problem, one.shape)}};
  if (const auto reached = rate_reached(bench.device, problem, gemm, us * 1e-6)) {
    line["rate"] = gemm.rate;
    line["rate_reached"] = *reached;
  }
  bench.report.add(line);
}

void measure_splits(Bench& bench, const SplitsCase& one, const DeviceLayer& layer) {
  const cuda::Problem problem = layer.problem(one.tokens);
  // The shape that serves so many rows and packs in its epilogue.
  cuda::FfnPlan plan =
      cuda::plan_ffn(bench.device, problem, kPlenty,
                     one.tokens > 32 ? std::optional(cuda::GemmShape::tile64x64) : std::nullopt);
  plan.gather.splits = one.splits;
  const LayerParts parts(bench.device, layer, one.tokens, plan, bench.timer.stream());
  parts.gate();
  const double us = bench.timer.measure(bench.options.runs, [&] { parts.gather(); }).median_us;
  std::printf("%-34s %10.1f us\n", one.name.c_str(), us);
  bench.report.add({{"kind", "gather_splits"},
                    {"variant", one.name},
                    {"tokens", one.tokens},
                    {"splits", one.splits},
                    {"us", us}});
}

}  // namespace

void sweep(Bench& bench) {
  const Options& options = bench.options;
  const std::int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
  guarded(bench, "sweeps", [&] {
    const DeviceLayer layer(
        make_skewed_layer(most, options.width, options.neurons, options.nnz.front(), 1));
    for (const ShapeCase& one : shape_cases(options)) {
      guarded(bench, one.name, [&] { measure_shape(bench, one, layer); });
    }
    for (const SplitsCase& one : splits_cases(options)) {
      guarded(bench, one.name, [&] { measure_splits(bench, one, layer); });
    }
  });
  std::fflush(stdout);
}

}  // namespace twell::bench
