// twell_gpu_bench: the CUDA operations beside cuBLAS on one layer, with output compared.
//
// First what the GPU does at best, then exact results, layers, training, sweeps; or probes, which
// decide what to build next. Prints tables and writes JSON lines as it measures. Nothing but the
// CUDA runtime and cuBLAS is needed.
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "cuda/bench/bench.h"
#include "cuda/bench/predictions.h"
#include "cuda/kernels/common/check.h"

namespace twell::bench {

void guarded(Bench& bench, const std::string& variant, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    bench.failed += 1;
    std::printf("%s: FAILED: %s\n", variant.c_str(), error.what());
    bench.report.add({{"kind", "error"}, {"variant", variant}, {"message", error.what()}});
    // A kernel that failed takes the process's GPU with it: then this throws.
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  }
}

namespace {

Line header(const Bench& bench) {
  const cuda::Device& device = bench.device;
  return {{"kind", "header"},
          {"gpu", device.name},
          {"compute_capability", device.major * 10 + device.minor},
          {"sms", device.sm_count},
          {"shared_bytes", device.shared_bytes},
          {"l2_bytes", device.l2_bytes},
          {"memory_bytes", device.memory_bytes},
          {"clock_khz", device.clock_khz},
          {"memory_clock_khz", device.memory_clock_khz},
          {"memory_bus_bits", device.memory_bus_bits},
          {"width", bench.options.width},
          {"neurons", bench.options.neurons},
          {"runs", bench.options.runs}};
}

int run(const Options& options) {
  Bench bench(options, cuda::current_device());
  bench.report.add(header(bench));
  std::printf("%s, compute capability %d.%d, %d SMs\n", bench.device.name.c_str(),
              bench.device.major, bench.device.minor, bench.device.sm_count);
  if (options.has_ceilings()) measure_ceilings(bench);
  if (options.has("exact")) check_exact(bench);
  if (options.has("layers")) measure_layers(bench);
  if (options.has("train")) measure_training(bench);
  if (options.has("sweeps")) sweep(bench);
  if (options.has("probe-gate")) probe_gate(bench);
  if (options.has("probe-rows")) probe_rows(bench);
  if (options.has("probe-graph")) probe_graph(bench);
  // Without this line the run was cut short.
  bench.report.add({{"kind", "end"}, {"failed", bench.failed}});
  return bench.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace twell::bench

int main(int argc, char** argv) {
  try {
    CLI::App app("The CUDA operations beside cuBLAS on one layer, with output compared.",
                 "twell_gpu_bench");
    twell::bench::Options options;
    twell::bench::declare(app, options);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
      return app.exit(error) == 0 ? 0 : 2;
    }
    if (options.list) {
      for (const std::string& name : twell::bench::variant_names(options)) {
        std::printf("%s\n", name.c_str());
      }
      return 0;
    }
    if (options.predict) {
      std::printf("%s", twell::bench::table_of(twell::bench::predictions(options)).c_str());
      return 0;
    }
    if (twell::cuda::device_count() == 0) {
      std::fprintf(stderr, "twell_gpu_bench: no NVIDIA GPU on this machine\n");
      return 77;  // skipped
    }
    return twell::bench::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "twell_gpu_bench: %s\n", error.what());
    return 2;
  }
}
