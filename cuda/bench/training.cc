// Training one layer, forward and backward, beside the GEMMs of dense training. What is judged: y
// against the dense layer's, row by row; gradients are finite, so that all were written; all have
// the same bits in timed replays. Their values are judged by cuda/tests/train_test.cc.
#include <algorithm>
#include <cstdio>
#include <map>

#include "cuda/bench/bench.h"
#include "cuda/bench/dense_training.h"
#include "cuda/bench/row_error.h"
#include "twell/cuda_train.h"

namespace twell::bench {
namespace {

using Bits = std::vector<std::uint16_t>;

bool all_finite(const Bits& bits) {
  constexpr unsigned kExponent = 0x7f80;
  return std::none_of(bits.begin(), bits.end(),
                      [](std::uint16_t b) { return (b & kExponent) == kExponent; });
}

struct DenseRun {
  DenseRun(Bench& bench, const DeviceLayer& layer, std::int64_t tokens)
      : gemms(bench.blas, bench.timer, layer, tokens) {
    const Times time = bench.timer.measure(bench.options.runs, [&] { gemms.run(layer); });
    const double flops = 18.0 * static_cast<double>(tokens * layer.width * layer.neurons);
    const double rate = flops / (time.median_us * 1e-6);
    std::printf("%7lld %7s %10.1f %10.1f %10.1f  nine GEMMs alone, %.0f TFLOP/s\n",
                static_cast<long long>(tokens), "", time.median_us, time.min_us, time.max_us,
                rate * 1e-12);
    bench.report.add({{"kind", "train_dense"},
                      {"variant", train_dense_name(tokens)},
                      {"tokens", tokens},
                      {"us", time.median_us},
                      {"min_us", time.min_us},
                      {"max_us", time.max_us},
                      {"flops_per_s", rate},
                      {"what", "nine GEMMs, no element-wise operations: a lower bound"},
                      {"impl", gemms.to_string()}});
  }
  DenseTraining gemms;
};

void measure_one(Bench& bench, const TrainCase& one, const DeviceLayer& layer,
                 const DenseRun& dense) {
  const std::int64_t tokens = one.tokens;
  cudaStream_t stream = bench.timer.stream();
  cuda::Problem problem = layer.problem(tokens);
  problem.hot = cuda::choose_hot_in_training(bench.device, problem, layer.rates);
  const cuda::TrainPlan plan = cuda::plan_train(bench.device, problem);
  const DeviceMemory<std::byte> kept(plan.kept_bytes);
  const DeviceMemory<std::byte> memory(plan.workspace_bytes);
  const cuda::Workspace keeper{kept.get(), kept.size()};
  const cuda::Workspace work{memory.get(), memory.size()};
  const DeviceMemory<std::int32_t> row_nnz(static_cast<std::size_t>(tokens));
  const DeviceMemory<std::uint16_t> dx(layer.x.size());
  const DeviceMemory<std::uint16_t> of_weights(3 * layer.down.size());
  const auto gradient = [&](std::size_t i) {
    return MatrixView{of_weights.get() + i * layer.down.size(), DType::bf16, layer.neurons,
                      layer.width};
  };
  const cuda::DeviceFfnGradients out{
      {dx.get(), DType::bf16, tokens, layer.width}, gradient(0), gradient(1), gradient(2)};
  const DeviceMemory<std::uint16_t>& dense_y = dense.gemms.forward(layer);
  const auto forward = [&](const cuda::DeviceStats& stats) {
    cuda::ffn_forward(plan, layer.inputs(0, tokens), layer.weights(), {}, layer.outputs(tokens),
                      keeper, work, stream, stats);
  };
  // The loss is ‖y‖² / 2. A copy: the dense GEMMs write their y anew in their turns.
  TWELL_CUDA_CHECK(cudaStreamSynchronize(stream));
  const Bits expected = dense_y.read();
  const DeviceMemory<std::uint16_t> dy(expected);
  const cuda::DeviceFfnBackward in{
      {dy.get(), DType::bf16, tokens, layer.width}, layer.inputs(0, tokens), layer.weights(), {}};
  const auto both = [&](const cuda::DeviceStats& stats) {
    forward(stats);
    cuda::ffn_backward(plan, in, out, keeper, work, stream);
  };
  layer.y.poison();
  both({row_nnz.get(), nullptr});
  TWELL_CUDA_CHECK(cudaStreamSynchronize(stream));
  const Bits y = layer.read_outputs(tokens);
  const auto read = [&] {
    Bits bits = dx.read(static_cast<std::size_t>(tokens * layer.width));
    const Bits more = of_weights.read();
    bits.insert(bits.end(), more.begin(), more.end());
    return bits;
  };
  const Bits gradients = read();
  const RowError error = worst_row(y, expected, tokens, layer.width);
  const bool finite = all_finite(gradients);
  double nnz = 0;
  for (const std::int32_t n : row_nnz.read()) nnz += n / static_cast<double>(tokens);

  // Forward alone comes last: it keeps what it kept before.
  const std::vector<Times> times = bench.timer.measure_in_turns(
      bench.options.runs,
      {[&] { both({}); }, [&] { dense.gemms.run(layer); }, [&] { forward({}); }});
  const Times& time = times[0];
  const Times& dense_time = times[1];
  const Times& forward_time = times[2];
  const bool same_bits = layer.read_outputs(tokens) == y && read() == gradients;
  const bool right = error.within() && finite && same_bits;
  if (!right) bench.failed += 1;
  const double speedup = dense_time.median_us / time.median_us;
  std::printf("%7lld %7.1f %10.1f %10.1f %10.1f %10.1f %8.2f %10.1f %9.1e%s%s%s\n",
              static_cast<long long>(tokens), nnz, dense_time.median_us, dense_time.min_us,
              dense_time.max_us, time.median_us, speedup, forward_time.median_us, error.largest,
              error.within() ? "" : "  WRONG", finite ? "" : "  GRADIENTS NOT FINITE",
              same_bits ? "" : "  OTHER BITS IN A GRAPH");
  std::fflush(stdout);
  bench.report.add({{"kind", "train"},
                    {"variant", one.name()},
                    {"tokens", tokens},
                    {"nnz_mean", nnz},
                    {"us", time.median_us},
                    {"min_us", time.min_us},
                    {"max_us", time.max_us},
                    {"forward_us", forward_time.median_us},
                    {"dense_us", dense_time.median_us},
                    {"dense_min_us", dense_time.min_us},
                    {"dense_max_us", dense_time.max_us},
                    {"speedup", speedup},
                    {"hot", plan.forward.hot},
                    {"kept_bytes", plan.kept_bytes},
                    {"worst_row_error", error.largest},
                    {"worst_row", error.row},
                    {"wrong_rows", error.wrong},
                    {"bound", kRowBound},
                    {"finite", finite},
                    {"same_bits", same_bits},
                    {"right", right},
                    {"impl", plan.to_string()}});
}

}  // namespace

void measure_training(Bench& bench) {
  std::printf("%7s %7s %10s %10s %10s %10s %8s %10s %9s\n", "tokens", "nnz", "GEMMs us", "min",
              "max", "train us", "speedup", "forward us", "worst row");
  const Options& options = bench.options;
  const std::int64_t most =
      *std::max_element(options.train_tokens.begin(), options.train_tokens.end());
  std::map<std::int64_t, DenseRun> dense;  // with the values of the first layer
  for (const double nnz : options.train_nnz) {
    guarded(bench, "train", [&] {
      const DeviceLayer layer(make_skewed_layer(most, options.width, options.neurons, nnz, 1));
      for (const std::int64_t tokens : options.train_tokens) {
        const TrainCase one{tokens, nnz};
        guarded(bench, one.name(), [&] {
          auto found = dense.find(tokens);
          if (found == dense.end()) found = dense.try_emplace(tokens, bench, layer, tokens).first;
          measure_one(bench, one, layer, found->second);
        });
      }
    });
  }
}

}  // namespace twell::bench
