// What this GPU does at best: what everything after it is to be compared with.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "cuda/bench/bench.h"
#include "cuda/bench/bench_kernels.h"
#include "cuda/bench/skewed_layer.h"

namespace twell::bench {
namespace {

// By a kernel, and by the runtime, whose copy in a graph reached 2.44 of 3.35 TB/s on an H100 and
// 2.72 of 4.8 on an H200.
double measure_copy(Bench& bench, const CeilingCase& one) {
  const DeviceMemory<uint4> from(one.bytes / sizeof(uint4));
  const DeviceMemory<uint4> to(from.size());
  cudaStream_t stream = bench.timer.stream();
  const Times t = bench.timer.measure(bench.options.runs, [&] {
    if (one.what == CeilingCase::What::memcpy) {
      TWELL_CUDA_CHECK(
          cudaMemcpyAsync(to.get(), from.get(), one.bytes, cudaMemcpyDeviceToDevice, stream));
    } else {
      launch_copy_all({from.get(), to.get(), static_cast<std::int64_t>(from.size())},
                      8 * bench.device.sm_count, stream);
    }
  });
  const double rate = 2.0 * static_cast<double>(one.bytes) / (t.median_us * 1e-6);
  std::printf("%-34s %8.2f TB/s\n", one.name.c_str(), rate * 1e-12);
  bench.report.add(
      {{"kind", "ceiling"}, {"variant", one.name}, {"us", t.median_us}, {"bytes_per_s", rate}});
  return rate;
}

// Random values: zeros would draw less power and run faster.
std::vector<std::uint16_t> random_matrix(std::int64_t rows, std::int64_t cols) {
  return make_skewed_layer(rows, cols, 8, 1, 11).x;
}

double measure_gemm(Bench& bench, const CeilingCase& one) {
  const DeviceMemory<std::uint16_t> a(random_matrix(one.m, one.k));
  const DeviceMemory<std::uint16_t> b(random_matrix(one.n, one.k));
  const DeviceMemory<std::uint16_t> c(static_cast<std::size_t>(one.m) *
                                      static_cast<std::size_t>(one.n));
  const GemmOperands operands{a.get(), b.get(), c.get()};
  const BlasGemm gemm(bench.blas, bench.timer, {one.m, one.n, one.k, false}, operands);
  const Times t = bench.timer.measure(bench.options.runs, [&] { gemm.run(operands); });
  const double rate = 2.0 * one.m * one.n * static_cast<double>(one.k) / (t.median_us * 1e-6);
  std::printf("%-34s %8.0f TFLOP/s  %8.1f us\n", one.name.c_str(), rate * 1e-12, t.median_us);
  bench.report.add({{"kind", "ceiling"},
                    {"variant", one.name},
                    {"us", t.median_us},
                    {"flops_per_s", rate},
                    {"impl", gemm.to_string()}});
  return rate;
}

// What a gather can get: its own loads, with nothing to compute. The rows are in L2 as far as they
// fit, since the runs that do not count have read each of them many times.
void measure_l2_rows(Bench& bench, const CeilingCase& one) {
  constexpr int kRowsPerWarp = 128;
  const auto rows = static_cast<std::uint32_t>(one.bytes / kReadRowBytes);
  const DeviceMemory<std::uint16_t> data(rows * (kReadRowBytes / 2));
  const DeviceMemory<unsigned> sum(1);
  const int blocks = 2 * bench.device.sm_count;
  const Times t = bench.timer.measure(
      bench.options.runs,
      [&] {
        launch_read_rows({data.get(), rows, kRowsPerWarp, sum.get()}, blocks, bench.timer.stream());
      },
      Cache::warm);
  const double bytes = static_cast<double>(blocks) * kReadWarps * kRowsPerWarp * kReadRowBytes;
  const double rate = bytes / (t.median_us * 1e-6);
  std::printf("%-34s %8.2f TB/s\n", one.name.c_str(), rate * 1e-12);
  bench.report.add(
      {{"kind", "ceiling"}, {"variant", one.name}, {"us", t.median_us}, {"bytes_per_s", rate}});
}

// What one more kernel adds to a graph where each waits for the one before: from 101 and from one,
// since events resolve half a microsecond.
void measure_launch_gap(Bench& bench, const CeilingCase& one) {
  constexpr int kMore = 100;
  const auto time_of = [&](int kernels) {
    return bench.timer
        .measure(
            bench.options.runs,
            [&] {
              for (int i = 0; i < kernels; ++i) launch_empty(bench.timer.stream());
            },
            Cache::warm)
        .median_us;
  };
  const double us = (time_of(1 + kMore) - time_of(1)) / kMore;
  std::printf("%-34s %8.2f us\n", one.name.c_str(), us);
  bench.report.add({{"kind", "ceiling"}, {"variant", one.name}, {"us", us}});
}

}  // namespace

void measure_ceilings(Bench& bench) {
  for (const CeilingCase& one : ceiling_cases(bench.options)) {
    guarded(bench, one.name, [&] {
      switch (one.what) {
        case CeilingCase::What::copy:
        case CeilingCase::What::memcpy:
          bench.ceilings.bytes = std::max(bench.ceilings.bytes, measure_copy(bench, one));
          break;
        case CeilingCase::What::gemm:
          bench.ceilings.flops = std::max(bench.ceilings.flops, measure_gemm(bench, one));
          break;
        case CeilingCase::What::l2_rows:
          measure_l2_rows(bench, one);
          break;
        case CeilingCase::What::launch_gap:
          measure_launch_gap(bench, one);
          break;
      }
    });
    std::fflush(stdout);
  }
}

}  // namespace twell::bench
