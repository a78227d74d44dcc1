// A layer made of a recorded trace fires exactly what was recorded.
#include "cli/trace_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <random>

#include "cli/bench_ffn.h"
#include "cli/reference.h"
#include "twell/status.h"

namespace twell::cli {
namespace {

io::ActivityRows random_rows(std::int64_t tokens, std::int64_t hidden) {
  std::mt19937 random(3);
  io::ActivityRows rows;
  for (std::int64_t t = 0; t < tokens; ++t) {
    // None, all, and everything between.
    const double chance = t % 5 == 0 ? 0.0 : t % 5 == 1 ? 1.0 : 0.02 * static_cast<double>(t % 7);
    for (std::int64_t n = 0; n < hidden; ++n) {
      if (std::generate_canonical<double, 32>(random) < chance) {
        rows.neurons.push_back(static_cast<std::uint32_t>(n));
      }
    }
    rows.starts.push_back(rows.neurons.size());
  }
  return rows;
}

TEST(TracedLayer, FiresExactlyWhatWasRecorded) {
  for (const char* dtype : {"bf16", "f32"}) {
    for (const char* activation : {"relu", "relu_squared", "fat_relu"}) {
      for (const bool gated : {true, false}) {
        BenchFfnOptions o;
        o.input = 64;
        o.hidden = 300;
        o.gated = gated;
        o.dtype = dtype;
        o.activation = activation;
        const io::ActivityRows rows = random_rows(50, o.hidden);
        const SparseLayer layer(traced_layer(o.shape(0), rows, 1), o.choice());
        // More tokens than were recorded: they come again.
        const at::Tensor x = traced_inputs(o.shape(0), 50, 120);
        ASSERT_EQ(x.sizes(), (at::IntArrayRef{120, 64}));
        for (std::int64_t t = 0; t < 120; ++t) {
          std::vector<std::int64_t> counts(static_cast<std::size_t>(o.hidden), 0),
              expected = counts;
          FfnStats stats;
          stats.neuron_counts = counts.data();
          run_sparse(layer, o.spec(), x.narrow(0, t, 1), &stats);
          for (const std::uint32_t n : rows.row(static_cast<std::size_t>(t % 50))) expected[n] = 1;
          EXPECT_EQ(counts, expected) << "token " << t;
        }
      }
    }
  }
}

TEST(TracedLayer, RefusesWhatDoesNotFit) {
  SyntheticShape shape;
  shape.input = 8;
  shape.hidden = 300;
  EXPECT_THROW(traced_layer(shape, random_rows(9, 300), 1), Error);
  shape.input = 9;
  EXPECT_NO_THROW(traced_layer(shape, random_rows(9, 300), 1));
  shape.hidden = 299;
  EXPECT_THROW(traced_layer(shape, random_rows(9, 300), 1), Error);
}

}  // namespace
}  // namespace twell::cli
