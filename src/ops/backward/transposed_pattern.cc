#include "ops/backward/transposed_pattern.h"

#include <algorithm>

#include "ops/scratch.h"

namespace twell {

TransposedPattern transpose(Context& context, const FfnPatternView& pattern, HotSet& hot,
                            double least, std::initializer_list<Weight> finite) {
  const std::int64_t neurons = pattern.cols;
  const std::int64_t nnz = pattern.nnz();
  const int most_threads = context.threads();
  const auto words = static_cast<std::size_t>(neurons + 1 + nnz + most_threads * neurons);
  auto* memory = static_cast<std::int64_t*>(context.scratch(
      0, kTransposed,
      words * sizeof(std::int64_t) + static_cast<std::size_t>(nnz) * sizeof(std::int32_t)));
  TransposedPattern out;
  out.offsets = memory;
  out.entry_of = out.offsets + neurons + 1;
  std::int64_t* const next = out.entry_of + nnz;  // [threads, H]
  out.rows = reinterpret_cast<std::int32_t*>(next + most_threads * neurons);
  parallel(context, [&](Team& team) {
    // Each thread has rows of its own, and for each neuron the entries behind those of the threads
    // before it. They may be fewer than were asked for.
    const int threads = team.threads();
    const int thread = team.thread();
    const std::int64_t begin = pattern.rows * thread / threads;
    const std::int64_t end = pattern.rows * (thread + 1) / threads;
    std::int64_t* const mine = next + thread * neurons;
    std::fill_n(mine, neurons, 0);
    for (std::int64_t i = pattern.offsets[begin]; i < pattern.offsets[end]; ++i) {
      ++mine[pattern.neurons[i]];
    }
    team.barrier();
    team.for_static(neurons, [&](std::int64_t n) {
      std::int64_t all = 0;
      for (int t = 0; t < threads; ++t) all += next[t * neurons + n];
      hot.counts()[n] = static_cast<std::int32_t>(all);
    });
    hot.choose(team, least, finite);
    team.single([&] {
      std::int64_t sum = 0;
      for (std::int64_t n = 0; n < neurons; ++n) {
        out.offsets[n] = sum;
        if (hot.contains(static_cast<std::int32_t>(n))) continue;
        for (int t = 0; t < threads; ++t) {
          const std::int64_t count = next[t * neurons + n];
          next[t * neurons + n] = sum;
          sum += count;
        }
      }
      out.offsets[neurons] = sum;
    });
    for (std::int64_t row = begin; row < end; ++row) {
      for (std::int64_t i = pattern.offsets[row]; i < pattern.offsets[row + 1]; ++i) {
        if (hot.contains(pattern.neurons[i])) continue;
        const std::int64_t entry = mine[pattern.neurons[i]]++;
        out.entry_of[i] = entry;
        out.rows[entry] = static_cast<std::int32_t>(row);
      }
    }
  });
  return out;
}

}  // namespace twell
