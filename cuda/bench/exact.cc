// The layer on integers, compared bit by bit: at every edge of the blocks of rows, in every shape
// of the GEMM and every number of splits.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "cuda/bench/bench.h"
#include "cuda/bench/device_layer.h"
#include "cuda/bench/exact_layer.h"

namespace twell::bench {
namespace {

void check_one(Bench& bench, const ExactCase& one, const ExactLayer& exact,
               const DeviceLayer& layer) {
  const cuda::FfnPlan plan = plan_of(bench.device, layer.problem(one.tokens), one);
  if (plan.gemm.shared_bytes > bench.device.shared_bytes) {
    bench.report.add({{"kind", "exact"},
                      {"variant", one.name},
                      {"skipped", "more shared memory than there is"}});
    return;
  }
  const DeviceMemory<std::byte> memory(plan.workspace_bytes);
  const DeviceMemory<std::int32_t> row_nnz(static_cast<std::size_t>(one.tokens));
  const DeviceMemory<std::int64_t> neurons(static_cast<std::size_t>(layer.neurons));
  neurons.fill(0);
  layer.y.poison();  // else the rows of the case before would do for rows that are not written
  cuda::ffn(plan, layer.inputs(one.first, one.tokens), layer.weights(), {},
            layer.outputs(one.tokens), {memory.get(), memory.size()}, bench.timer.stream(),
            {row_nnz.get(), neurons.get()});
  TWELL_CUDA_CHECK(cudaStreamSynchronize(bench.timer.stream()));
  const BitDifference off =
      differing_bits(exact, layer.read_outputs(one.tokens), one.first, one.tokens);
  const ExactCounts counts = exact_counts(exact, one.first, one.tokens);
  const bool counted = row_nnz.read() == counts.row_nnz && neurons.read() == counts.neurons;
  const bool equal = off.count == 0 && counted;
  Line line = {
      {"kind", "exact"}, {"variant", one.name}, {"equal", equal}, {"impl", plan.to_string()}};
  if (!equal) {
    bench.failed += 1;
    line.update({{"different", off.count},
                 {"row", off.row},
                 {"column", off.column},
                 {"got", off.got},
                 {"expected", off.expected},
                 {"counts_equal", counted}});
    std::printf("%s: WRONG: %lld values differ, the first at row %lld, column %lld: %g, not %g%s\n",
                one.name.c_str(), static_cast<long long>(off.count),
                static_cast<long long>(off.row), static_cast<long long>(off.column),
                static_cast<double>(off.got), static_cast<double>(off.expected),
                counted ? "" : "; counts differ");
  }
  bench.report.add(line);
}

}  // namespace

void check_exact(Bench& bench) {
  const std::vector<ExactCase> cases = exact_cases(bench.options);
  const int failed_before = bench.failed;
  for (const double nnz : bench.options.nnz) {
    const ExactLayer exact =
        make_exact_layer(kExactTokens, bench.options.width, bench.options.neurons, nnz, 5);
    const DeviceLayer layer(exact.layer);
    for (const ExactCase& one : cases) {
      if (one.nnz != nnz) continue;
      guarded(bench, one.name, [&] { check_one(bench, one, exact, layer); });
    }
  }
  std::printf("exact: %zu cases, %d wrong\n", cases.size(), bench.failed - failed_before);
  std::fflush(stdout);
}

}  // namespace twell::bench
