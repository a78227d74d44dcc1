// A layer made of a recorded trace fires exactly what was recorded.
#include "synth/trace_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <random>

#include "measure/ffn_bench.h"
#include "measure/reference.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

io::ActivityRows random_rows(std::int64_t tokens, std::int64_t neurons) {
  std::mt19937 random(3);
  io::ActivityRows rows;
  for (std::int64_t t = 0; t < tokens; ++t) {
    // None, all, and everything between.
    const double chance = t % 5 == 0 ? 0.0 : t % 5 == 1 ? 1.0 : 0.02 * static_cast<double>(t % 7);
    for (std::int64_t n = 0; n < neurons; ++n) {
      if (std::generate_canonical<double, 32>(random) < chance) {
        rows.neurons.push_back(static_cast<std::uint32_t>(n));
      }
    }
    rows.starts.push_back(rows.neurons.size());
  }
  return rows;
}

TEST(TracedLayer, FiresExactlyWhatWasRecorded) {
  struct Counts final : FfnObserver {
    bool wants_counts() const override { return true; }
    void observe(const FfnActivity& activity) override { last = activity.counts; }
    FfnCounts last;
  } seen;
  SyntheticShape shape;
  shape.width = 64;
  shape.neurons = 300;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const io::HiddenAct act :
         {io::HiddenAct::relu, io::HiddenAct::relu_squared, io::HiddenAct::fat_relu}) {
      for (const bool gated : {true, false}) {
        shape.gated = gated;
        shape.dtype = dtype;
        shape.threshold = act == io::HiddenAct::fat_relu ? 0.5 : 0.0;
        const io::ActivityRows rows = random_rows(50, shape.neurons);
        const BenchLayer layer(traced_layer(shape, rows, 1),
                               {act, static_cast<float>(shape.threshold)}, at::kCPU);
        // More tokens than were recorded: they come again.
        const at::Tensor x = traced_inputs(shape, 50, 120);
        ASSERT_EQ(x.sizes(), (at::IntArrayRef{120, 64}));
        for (std::int64_t t = 0; t < 120; ++t) {
          std::vector<std::int64_t> expected(static_cast<std::size_t>(shape.neurons), 0);
          for (const std::uint32_t n : rows.row(static_cast<std::size_t>(t % 50))) expected[n] = 1;
          layer.sparse->forward(x.narrow(0, t, 1), 0, &seen);
          EXPECT_EQ(seen.last.neuron_nnz, expected) << "token " << t;
        }
      }
    }
  }
}

TEST(TracedLayer, RefusesWhatDoesNotFit) {
  SyntheticShape shape;
  shape.width = 8;
  shape.neurons = 300;
  EXPECT_THROW(traced_layer(shape, random_rows(9, 300), 1), Error);
  shape.width = 9;
  EXPECT_NO_THROW(traced_layer(shape, random_rows(9, 300), 1));
  shape.neurons = 299;
  EXPECT_THROW(traced_layer(shape, random_rows(9, 300), 1), Error);
}

}  // namespace
}  // namespace twell::lm
