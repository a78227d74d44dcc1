// One layer beside the dense one, with their outputs compared, and its two kernels apart.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <vector>

#include "cuda/bench/bench.h"
#include "cuda/bench/dense_ffn.h"
#include "cuda/bench/device_layer.h"
#include "cuda/bench/layer_parts.h"
#include "cuda/bench/row_error.h"

namespace twell::bench {
namespace {

std::vector<std::uint16_t> transposed(const std::vector<std::uint16_t>& from, std::int64_t rows,
                                      std::int64_t cols) {
  std::vector<std::uint16_t> to(from.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      to[static_cast<std::size_t>(c * rows + r)] = from[static_cast<std::size_t>(r * cols + c)];
    }
  }
  return to;
}

// What the dense layer has besides.
struct DenseMemory {
  explicit DenseMemory(const SkewedLayer& layer)
      : y(layer.x.size()),
        gate_up_out(static_cast<std::size_t>(layer.tokens * 2 * layer.neurons)),
        hidden_state(static_cast<std::size_t>(layer.tokens * layer.neurons)),
        down_by_row(transposed(layer.down, layer.neurons, layer.width)) {}
  DenseLayer of(const DeviceLayer& layer) const {
    return {layer.x.get(),     layer.gate_up.get(), layer.down.get(), down_by_row.get(),
            gate_up_out.get(), hidden_state.get(),  y.get()};
  }
  DeviceMemory<std::uint16_t> y, gate_up_out, hidden_state, down_by_row;
};

double mean_of(const std::vector<std::int32_t>& counts) {
  double sum = 0.0;
  for (const std::int32_t n : counts) sum += n;
  return sum / static_cast<double>(counts.size());
}

void measure_one(Bench& bench, const LayerCase& one, const DeviceLayer& layer,
                 const DenseMemory& dense_memory) {
  const std::int64_t tokens = one.tokens;
  cudaStream_t stream = bench.timer.stream();
  const int runs = bench.options.runs;
  cuda::Problem problem = layer.problem(tokens);
  problem.hot = cuda::choose_hot(bench.device, problem, layer.rates);
  problem.screened = one.screened;
  problem.candidates =
      std::min(1.0, kCandidatesPerFiring * one.nnz / static_cast<double>(layer.neurons));
  const cuda::FfnPlan plan = cuda::plan_ffn(bench.device, problem);
  const DeviceMemory<std::byte> memory(plan.workspace_bytes);
  const DeviceMemory<std::int32_t> row_nnz(static_cast<std::size_t>(tokens));
  const auto sparse = [&](const cuda::DeviceStats& stats) {
    cuda::ffn(plan, layer.inputs(0, tokens), layer.weights(), {}, layer.outputs(tokens),
              {memory.get(), memory.size()}, stream, stats);
  };
  const DenseFfn dense(bench.blas, bench.timer, dense_memory.of(layer), tokens, layer.width,
                       layer.neurons);

  // Not what the case before left: its rows are these.
  layer.y.poison();
  dense_memory.y.poison();
  const DeviceMemory<std::int64_t> candidates(1);
  candidates.fill(0);
  sparse({row_nnz.get(), nullptr, candidates.get()});
  dense.run();
  TWELL_CUDA_CHECK(cudaStreamSynchronize(stream));
  const std::vector<std::uint16_t> y = layer.read_outputs(tokens);
  const RowError error = worst_row(
      y, dense_memory.y.read(static_cast<std::size_t>(tokens * layer.width)), tokens, layer.width);
  const double nnz = mean_of(row_nnz.read());

  // All that lines of a case compare is measured in the same rounds.
  const LayerParts parts(bench.device, layer, tokens, plan, stream);
  std::vector<std::function<void()>> works = {[&] { sparse({}); }, [&] { dense.run(); },
                                              [&] { parts.gate(); }};
  if (parts.has_gather()) works.emplace_back([&] { parts.gather(); });
  const std::vector<Times> times = bench.timer.measure_in_turns(runs, works);
  const Times& sparse_time = times[0];
  const Times& dense_time = times[1];
  const Times& gate_time = times[2];
  const double gather_us =
      parts.has_gather() ? times[3].median_us : sparse_time.median_us - gate_time.median_us;
  const bool same_bits = layer.read_outputs(tokens) == y;
  const bool right = error.within() && same_bits;
  if (!right) bench.failed += 1;

  const double gate_flops = 2.0 * static_cast<double>(tokens * layer.width * layer.neurons);
  const double row_bytes = static_cast<double>(layer.width) * 2;
  const double gather_bytes = static_cast<double>(tokens) * (2.0 * nnz + 2.0) * row_bytes;
  // The gate GEMM alone, or reading its weights and those of every neuron once.
  const double neurons = static_cast<double>(layer.neurons);
  const double weight_bytes =
      row_bytes * (neurons + 2.0 * std::min(nnz * static_cast<double>(tokens), neurons));
  const double floor_us =
      1e6 * std::max(gate_flops / bench.ceilings.flops, weight_bytes / bench.ceilings.bytes);
  const double speedup = dense_time.median_us / sparse_time.median_us;
  const double gate_rate = gate_flops / (gate_time.median_us * 1e-6);
  const double gather_rate = gather_bytes / (gather_us * 1e-6);
  const double dense_rate = 3.0 * gate_flops / (dense_time.median_us * 1e-6);

  std::printf("%7lld %7.1f %10.1f %10.1f %8.2f %10.1f %10.0f %10.1f %10.2f %6.2f %9.1e%s%s\n",
              static_cast<long long>(tokens), nnz, dense_time.median_us, sparse_time.median_us,
              speedup, gate_time.median_us, gate_rate * 1e-12, gather_us, gather_rate * 1e-12,
              floor_us / sparse_time.median_us, error.largest, error.within() ? "" : "  WRONG",
              same_bits ? "" : "  OTHER BITS IN A GRAPH");
  std::fflush(stdout);
  bench.report.add({{"kind", "ffn"},
                    {"variant", one.name("ffn")},
                    {"tokens", tokens},
                    {"nnz_mean", nnz},
                    {"us", sparse_time.median_us},
                    {"min_us", sparse_time.min_us},
                    {"max_us", sparse_time.max_us},
                    {"dense_us", dense_time.median_us},
                    {"dense_min_us", dense_time.min_us},
                    {"dense_max_us", dense_time.max_us},
                    {"speedup", speedup},
                    {"floor_us", floor_us},
                    {"worst_row_error", error.largest},
                    {"worst_row", error.row},
                    {"wrong_rows", error.wrong},
                    {"bound", kRowBound},
                    {"same_bits", same_bits},
                    {"candidates", candidates.read().front()},
                    {"right", right},
                    {"impl", plan.to_string()}});
  bench.report.add({{"kind", "gate"},
                    {"variant", one.name("gate")},
                    {"us", gate_time.median_us},
                    {"min_us", gate_time.min_us},
                    {"max_us", gate_time.max_us},
                    {"flops_per_s", gate_rate}});
  if (one.screened) return;
  bench.report.add({{"kind", "dense"},
                    {"variant", one.name("dense")},
                    {"us", dense_time.median_us},
                    {"min_us", dense_time.min_us},
                    {"max_us", dense_time.max_us},
                    {"flops_per_s", dense_rate},
                    {"impl", dense.to_string()}});
  bench.report.add({{"kind", "gather"},
                    {"variant", one.name("gather")},
                    {"us", gather_us},
                    {"bytes_per_s", gather_rate}});
}

}  // namespace

void measure_layers(Bench& bench) {
  std::printf("%7s %7s %10s %10s %8s %10s %10s %10s %10s %6s %9s\n", "tokens", "nnz", "dense us",
              "sparse us", "speedup", "gate us", "gate TF/s", "gather us", "gather TB/s", "floor",
              "worst row");
  const Options& options = bench.options;
  const std::int64_t most = *std::max_element(options.tokens.begin(), options.tokens.end());
  const std::vector<LayerCase> cases = layer_cases(options);
  for (const double nnz : options.nnz) {
    guarded(bench, "layers", [&] {
      const SkewedLayer host = make_skewed_layer(most, options.width, options.neurons, nnz, 1);
      const DeviceLayer layer(host);
      const DenseMemory dense(host);
      for (const LayerCase& one : cases) {
        if (one.nnz != nnz) continue;
        guarded(bench, one.name("ffn"), [&] { measure_one(bench, one, layer, dense); });
      }
    });
  }
}

}  // namespace twell::bench
