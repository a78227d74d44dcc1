#include "bench/kernels/ggml_downs.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "bench/kernels/timer.h"
#include "core/team.h"
#include "twell/ggml.h"
#include "twell/half.h"

namespace twell::bench {
namespace {

constexpr std::int64_t kOutputs = 2048, kInputs = 8192;
// One after the other, as in a model: more than a cache holds.
int layers() { return runs == 1 ? 1 : 12; }

template <class F>
double median_ms(F f) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const int calls = layers() * (runs == 1 ? 1 : 12);
  for (int i = 0; i < calls; ++i) {
    const auto start = Clock::now();
    f(i % layers());
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<std::size_t>(calls / 2)];
}

GgmlMatrix random_down(GgmlFormat format, unsigned seed) {
  const GgmlTraits traits = traits_of(format);
  GgmlView view{format, nullptr, kOutputs, kInputs};
  std::vector<std::uint8_t> blocks(static_cast<std::size_t>(kOutputs * view.row_bytes()));
  std::minstd_rand random(seed);
  for (auto& byte : blocks) byte = static_cast<std::uint8_t>(random() >> 8U);
  for (std::size_t at = 0; at < blocks.size(); at += static_cast<std::size_t>(traits.bytes)) {
    GgmlBlock block;
    take_block(format, blocks.data() + at, &block);
    block.scale = block.minimum = half_of_float(0.001F);
    put_block(format, block, blocks.data() + at);
  }
  view.blocks = blocks.data();
  return {view, GgmlOrder::inputs};
}

double read_ms(Context& context, const std::vector<GgmlMatrix>& downs, std::int64_t bytes) {
  return median_ms([&](int layer) {
    const auto* const words = static_cast<const std::uint64_t*>(downs[layer].data());
    const std::int64_t share = bytes / 64 / context.threads();
    parallel_for(context, context.threads(), [&](std::int64_t t) {
      std::uint64_t sums[8] = {};
      for (std::int64_t i = t * share * 8; i < (t + 1) * share * 8; i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
      }
      volatile std::uint64_t kept =
          sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
      static_cast<void>(kept);
    });
  });
}

void print_downs(Context& context, GgmlInputs inputs) {
  std::printf("ms of one row, D = %d, H = %d, %d thread%s, inputs %s\n\n",
              static_cast<int>(kOutputs), static_cast<int>(kInputs), context.threads(),
              context.threads() == 1 ? "" : "s",
              inputs == GgmlInputs::rounded ? "rounded" : "as they are");
  std::puts("| blocks | 1 % | 5 % | 9 % | 20 % | 50 % | 100 % | reading all |");
  std::puts("| --- | --- | --- | --- | --- | --- | --- | --- |");
  for (const GgmlFormat format : {GgmlFormat::q4_0, GgmlFormat::q5_0, GgmlFormat::q8_0,
                                  GgmlFormat::q4_k, GgmlFormat::q5_k, GgmlFormat::q6_k}) {
    std::vector<GgmlMatrix> downs;
    for (int i = 0; i < layers(); ++i) downs.push_back(random_down(format, i + 1));
    std::printf("| %s |", name_of(format));
    for (const double share : {0.01, 0.05, 0.09, 0.2, 0.5, 1.0}) {
      std::mt19937 random(1);
      std::vector<float> h(kInputs), y(kOutputs);
      for (float& x : h) {
        const float size = static_cast<float>(1 + random() % 127);
        x = static_cast<double>(random()) < share * 4294967296.0 ? size : 0.0F;
      }
      const double ms = median_ms([&](int layer) {
        ggml_matmul(context, {h.data(), DType::f32, 1, kInputs}, downs[layer],
                    {y.data(), DType::f32, 1, kOutputs}, inputs);
      });
      std::printf(" %.3f |", ms);
      std::fflush(stdout);
    }
    const GgmlTraits traits = traits_of(format);
    std::printf(" %.3f |\n",
                read_ms(context, downs, kOutputs * kInputs / traits.numbers * traits.bytes));
  }
  std::puts("");
}

}  // namespace

void print_ggml_downs(int threads) {
  Context context({.threads = threads, .tier = {}});
  print_downs(context, GgmlInputs::rounded);
  print_downs(context, GgmlInputs::as_they_are);
}

}  // namespace twell::bench
