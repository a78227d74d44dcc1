// twell_gpu_bench: the CUDA operations beside cuBLAS on one layer, with output compared.
//
//   twell_gpu_bench [--list | --predict] [--json FILE] [--only exact,layers,train,sweeps]
//                   [--tokens 1,16,...] [--nnz 29,...] [--train-tokens 2048,...]
//                   [--train-nnz 28,...] [--runs N] [--hidden D] [--ffn H]
//
// First what the GPU does at best, then exact results, layers, training, sweeps. Prints tables and
// writes JSON lines as it measures. --list names every variant and --predict says what is expected
// on an H100, both without a GPU. Nothing but the CUDA runtime and cuBLAS is needed.
#include <cuda_runtime.h>

#include <cstdio>
#include <string>
#include <vector>

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
    bench.report.add(Line("error", variant).add("message", error.what()));
    // A kernel that failed takes the process's GPU with it: then this throws.
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  }
}

namespace {

Line header(const Bench& bench) {
  const cuda::Device& device = bench.device;
  Line line("header");
  line.add("gpu", device.name).add("compute_capability", device.major * 10 + device.minor);
  line.add("sms", device.sm_count);
  line.add("shared_bytes", static_cast<std::int64_t>(device.shared_bytes));
  line.add("l2_bytes", static_cast<std::int64_t>(device.l2_bytes));
  line.add("memory_bytes", static_cast<std::int64_t>(device.memory_bytes));
  line.add("clock_khz", device.clock_khz).add("memory_clock_khz", device.memory_clock_khz);
  line.add("memory_bus_bits", device.memory_bus_bits);
  line.add("depth", bench.options.depth).add("hidden", bench.options.hidden);
  return line.add("runs", bench.options.runs);
}

int run(const Options& options) {
  Bench bench(options, cuda::current_device());
  bench.report.add(header(bench));
  std::printf("%s, compute capability %d.%d, %d SMs\n", bench.device.name.c_str(),
              bench.device.major, bench.device.minor, bench.device.sm_count);
  measure_ceilings(bench);
  if (options.exact) check_exact(bench);
  if (options.layers) measure_layers(bench);
  if (options.train) measure_training(bench);
  if (options.sweeps) sweep(bench);
  // Without this line the run was cut short.
  bench.report.add(Line("end").add("failed", bench.failed));
  return bench.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace twell::bench

int main(int argc, char** argv) {
  try {
    const twell::bench::Options options =
        twell::bench::parse(std::vector<std::string>(argv + 1, argv + argc));
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
