// The benchmark where no GPU is: how it compares, what it compares with, its kernels on the
// emulated GPU.
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "cuda/bench/bench_kernels.h"
#include "cuda/bench/bulk_rows.h"
#include "cuda/bench/exact_layer.h"
#include "cuda/bench/gate_rate.h"
#include "cuda/bench/launch_shapes.h"
#include "cuda/bench/line_fit.h"
#include "cuda/bench/predictions.h"
#include "cuda/bench/report.h"
#include "cuda/bench/row_error.h"
#include "cuda/bench/variants.h"
#include "cuda/tests/support/device_buffer.h"
#include "twell/status.h"

namespace twell::bench {
namespace {

using test::DeviceBuffer;

std::uint16_t bits_of(double value) { return bf16(static_cast<float>(value)).bits; }
float value_of(std::uint16_t bits) { return static_cast<float>(bf16::from_bits(bits)); }

constexpr std::int64_t kRows = 16384;
constexpr std::int64_t kCols = 16;

std::vector<std::uint16_t> some_rows() {
  std::vector<std::uint16_t> out(static_cast<std::size_t>(kRows * kCols));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = bits_of(std::sin(0.37 * static_cast<double>(i)) + 0.1);
  }
  return out;
}
std::uint16_t& at(std::vector<std::uint16_t>& matrix, std::int64_t row, std::int64_t col) {
  return matrix[static_cast<std::size_t>(row * kCols + col)];
}
RowError compared(const std::vector<std::uint16_t>& a, const std::vector<std::uint16_t>& b) {
  return worst_row(a, b, kRows, kCols);
}

TEST(RowError, RoundingsAreWithinTheBound) {
  const std::vector<std::uint16_t> b = some_rows();
  std::vector<std::uint16_t> a = b;
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::uint16_t>(a[i] + i % 2);
  const RowError error = compared(a, b);
  EXPECT_TRUE(error.within());
  EXPECT_GT(error.largest, 0x1p-9);
  EXPECT_EQ(compared(b, b).largest, 0.0);
}

TEST(RowError, OneWrongRowIsFoundAmongMany) {
  const std::vector<std::uint16_t> b = some_rows();
  std::vector<std::uint16_t> a = b;
  // Off by 5 %: of the norm of the whole that is 4e-4, a hundredth of the bound.
  for (std::int64_t c = 0; c < kCols; ++c)
    at(a, 9876, c) = bits_of(1.05 * value_of(at(a, 9876, c)));
  const RowError error = compared(a, b);
  EXPECT_EQ(error.wrong, 1);
  EXPECT_EQ(error.row, 9876);
  EXPECT_NEAR(error.largest, 0.05, 0.005);
}

TEST(RowError, SwappedRowsAreFound) {
  const std::vector<std::uint16_t> b = some_rows();
  std::vector<std::uint16_t> a = b;
  for (std::int64_t c = 0; c < kCols; ++c) std::swap(at(a, 100, c), at(a, 9000, c));
  const RowError error = compared(a, b);
  EXPECT_EQ(error.wrong, 2);
  EXPECT_TRUE(error.row == 100 || error.row == 9000);
}

TEST(RowError, OneNanOrInfinityIsFoundOnEitherSide) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const std::vector<std::uint16_t> good = some_rows();
    std::vector<std::uint16_t> bad = good;
    at(bad, 5, 3) = bits_of(value);
    for (const RowError& error : {compared(bad, good), compared(good, bad), compared(bad, bad)}) {
      EXPECT_EQ(error.wrong, 1);
      EXPECT_EQ(error.row, 5);
      EXPECT_TRUE(std::isinf(error.largest));
    }
  }
}

TEST(RowError, RowsWithoutANormAreMeasuredByTheOthers) {
  std::vector<std::uint16_t> b = some_rows();
  for (std::int64_t c = 0; c < kCols; ++c) at(b, 7, c) = 0;
  std::vector<std::uint16_t> a = b;
  EXPECT_EQ(compared(a, b).largest, 0.0);
  // Rows have a norm near 2.9: a gate that fired in one of two sums adds 1e-4 of that.
  at(a, 7, 0) = bits_of(1e-4 * 2.9);
  EXPECT_TRUE(compared(a, b).within());
  EXPECT_GT(compared(a, b).largest, 0.005);
  at(a, 7, 0) = bits_of(1e-3 * 2.9);
  EXPECT_EQ(compared(a, b).wrong, 1);
  // Where all is zero, anything else is wrong.
  const std::vector<std::uint16_t> zeros(a.size());
  EXPECT_TRUE(compared(zeros, zeros).within());
  EXPECT_EQ(compared(a, zeros).wrong, kRows);
  EXPECT_EQ(compared(zeros, b).wrong, kRows - 1);
  EXPECT_THROW(worst_row(a, b, kRows + 1, kCols), Error);
}

// The bounds of exact_layer.h hold for the data at full size, and its rows and neurons are what
// they are to be.
TEST(ExactLayer, IsExactAndSkewedAtFullSize) {
  constexpr std::int64_t kDepth = 2048;
  constexpr std::int64_t kHidden = 5632;
  for (const double nnz : {29.0, 563.0}) {
    const ExactLayer exact = make_exact_layer(kExactTokens, kDepth, kHidden, nnz, 5);
    const SkewedLayer& layer = exact.layer;
    std::vector<std::vector<std::pair<std::size_t, int>>> inputs(kExactTokens);
    std::set<std::size_t> columns;
    for (std::size_t r = 0; r < kExactTokens; ++r) {
      for (std::size_t k = 0; k < kDepth; ++k) {
        const auto x = static_cast<int>(value_of(layer.x[r * kDepth + k]));
        if (x == 0) continue;
        inputs[r].emplace_back(k, x);
        columns.insert(k);
      }
    }
    EXPECT_EQ(columns.size(), kDepth) << "every input of some row is not zero";
    const auto dot = [&](std::size_t r, const std::vector<std::uint16_t>& weight, std::size_t n) {
      float sum = 0.0F;
      for (const auto& [k, x] : inputs[r]) {
        sum += static_cast<float>(x) * value_of(weight[n * kDepth + k]);
      }
      return sum;
    };
    std::vector<int> fired(kHidden);
    double ordinary = 0;
    std::int64_t rounded = 0;
    for (std::size_t r = 0; r < kExactTokens; ++r) {
      const bool extreme = r == kFullRow || r == kEmptyRow;
      float magnitude = 0.0F;
      const auto& active = exact.active[r];
      for (const std::int32_t n : active) {
        const float g = dot(r, layer.gate, static_cast<std::size_t>(n));
        const float u = dot(r, layer.up, static_cast<std::size_t>(n));
        ASSERT_GE(g, 1.0F);
        ASSERT_LE(g, 256.0F);
        ASSERT_LE(std::abs(g * u), static_cast<float>(exact_hidden_bound()));
        ASSERT_EQ(value_of(bits_of(g * u)), g * u);
        magnitude += std::abs(g * u) * kExactDown;
        if (!extreme) fired[static_cast<std::size_t>(n)] += 1;
      }
      ASSERT_LT(magnitude, 0x1p22F);
      if (!extreme) ordinary += static_cast<double>(active.size());
      // y in the other order of neurons, in f32.
      for (std::size_t c = r % 7; c < kDepth; c += 97) {
        float y = 0.0F;
        for (auto n = active.rbegin(); n != active.rend(); ++n) {
          const auto row = static_cast<std::size_t>(*n);
          y += dot(r, layer.gate, row) * dot(r, layer.up, row) *
               value_of(layer.down[row * kDepth + c]);
        }
        ASSERT_EQ(exact.y[r * kDepth + c], bits_of(y)) << "row " << r << ", column " << c;
        rounded += value_of(bits_of(y)) != y ? 1 : 0;
      }
    }
    EXPECT_EQ(exact.active[kFullRow].size(), kHidden);
    EXPECT_TRUE(exact.active[kEmptyRow].empty());
    EXPECT_GT(rounded, 0) << "a result that is rounded before the end must show";
    const double mean = ordinary / (kExactTokens - 2);
    EXPECT_GT(mean, 0.7 * nnz);
    EXPECT_LT(mean, 1.4 * nnz);
    std::sort(fired.rbegin(), fired.rend());
    double top = 0;
    for (std::size_t i = 0; i < kHidden / 20; ++i) top += fired[i];
    EXPECT_GT(top / ordinary, nnz < 100 ? 0.3 : 0.2);  // 5 % of the neurons
  }
  EXPECT_THROW(make_exact_layer(1, 2048, 16384, 29, 1), Error);
}

// Device memory that starts where a workspace may.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes) : buffer_(bytes + 256), bytes_(bytes) {}
  cuda::Workspace workspace() const {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer_.data());
    return {buffer_.data() + (256 - address % 256) % 256, bytes_};
  }

 private:
  DeviceBuffer<std::byte> buffer_;
  std::size_t bytes_;
};

// What the program does on a GPU, on the emulated one: its cases, of a small layer.
TEST(ExactLayer, KernelsGiveItsBitsInEveryCase) {
  Options options;
  options.width = 64;
  options.neurons = 264;
  options.nnz = {20};
  const ExactLayer exact = make_exact_layer(kExactTokens, options.width, options.neurons, 20, 3);
  const SkewedLayer& host = exact.layer;
  const DeviceBuffer<std::uint16_t> x(host.x);
  std::vector<std::uint16_t> joined = host.gate;
  joined.insert(joined.end(), host.up.begin(), host.up.end());
  const DeviceBuffer<std::uint16_t> gate_up(joined);
  const DeviceBuffer<std::uint16_t> down(host.down);
  const auto weight = [&](const std::uint16_t* data) {
    return ConstMatrixView{data, DType::bf16, host.neurons, host.width};
  };
  const DeviceBuffer<std::byte> screen_memory(cuda::screen_bytes(host.neurons, host.width));
  const ScreenView screen = cuda::make_screen(
      weight(gate_up.data()), nullptr, {screen_memory.data(), screen_memory.size()}, nullptr);
  const FfnWeights weights = {weight(gate_up.data()), weight(gate_up.data() + host.gate.size()),
                              weight(down.data()), screen};
  bool seen_joined = false;
  std::set<std::int64_t> row_blocks;
  for (const ExactCase& one : exact_cases(options)) {
    if (one.tokens > 33 && one.tokens < kExactTokens) continue;  // seconds each
    cuda::Problem problem{one.tokens, host.width, host.neurons, DType::bf16, true, true};
    problem.joined = true;
    const cuda::FfnPlan plan = plan_of(cuda::current_device(), problem, one);
    seen_joined = seen_joined || plan.joined;
    if (one.tokens == kExactTokens) row_blocks.insert(plan.row_block);
    const AlignedMemory memory(plan.workspace_bytes);
    const DeviceBuffer<std::uint16_t> y(static_cast<std::size_t>(one.tokens * host.width));
    const DeviceBuffer<std::int32_t> row_nnz(static_cast<std::size_t>(one.tokens));
    const DeviceBuffer<std::int64_t> neurons(
        std::vector<std::int64_t>(static_cast<std::size_t>(host.neurons)));
    cuda::ffn(plan, {x.data() + one.first * host.width, DType::bf16, one.tokens, host.width},
              weights, {}, {y.data(), DType::bf16, one.tokens, host.width}, memory.workspace(),
              nullptr, {row_nnz.data(), neurons.data()});
    const std::vector<std::uint16_t> got = y.read();
    EXPECT_EQ(differing_bits(exact, got, one.first, one.tokens).count, 0) << one.name;
    const ExactCounts counts = exact_counts(exact, one.first, one.tokens);
    EXPECT_EQ(row_nnz.read(), counts.row_nnz) << one.name;
    EXPECT_EQ(neurons.read(), counts.neurons) << one.name;
  }
  EXPECT_EQ(row_blocks, (std::set<std::int64_t>{128, 300}));
  EXPECT_TRUE(seen_joined);

  std::vector<std::uint16_t> wrong = exact.y;
  wrong[static_cast<std::size_t>(3 * host.width + 9)] ^= 1U;
  const BitDifference off = differing_bits(exact, wrong, 0, kExactTokens);
  EXPECT_EQ(off.count, 1);
  EXPECT_EQ(off.row, 3);
  EXPECT_EQ(off.column, 9);
}

TEST(LaunchShapes, GridsHoldAnyNumberOfRows) {
  for (const std::int64_t rows : {1, 65535, 65536, 1000000}) {
    for (const std::int64_t neurons : {8, 5632, 65536}) {
      const Grid grid = relu_times_grid(rows, neurons);
      EXPECT_GE(grid.y, 1U);
      EXPECT_LE(grid.y, 65535U);
      EXPECT_LE(grid.y, rows);
      EXPECT_GE(std::int64_t{grid.x} * kElementThreads * 8, neurons);
      EXPECT_LT((std::int64_t{grid.x} - 1) * kElementThreads * 8, neurons);
    }
  }
}

TEST(BenchKernels, ReluTimesTakesEveryRowAndKeepsNan) {
  constexpr std::int64_t kManyRows = kMostBlocksY + 3;  // blocks take a second one
  constexpr int kHidden = 8;
  std::vector<std::uint16_t> gate_up(kManyRows * 2 * kHidden);
  for (std::size_t i = 0; i < gate_up.size(); ++i) {
    gate_up[i] = bits_of(static_cast<double>(i % 37) - 18.0);
  }
  const std::size_t nan_at = (kMostBlocksY + 1) * 2 * kHidden + 3;
  gate_up[nan_at] = 0x7fc0;
  const DeviceBuffer<std::uint16_t> from(gate_up);
  const DeviceBuffer<std::uint16_t> to(kManyRows * kHidden);
  launch_relu_times({from.data(), to.data(), kManyRows, kHidden}, nullptr);
  const std::vector<std::uint16_t> got = to.read();
  for (std::size_t r = 0; r < kManyRows; ++r) {
    for (std::size_t n = 0; n < kHidden; ++n) {
      const std::size_t i = r * 2 * kHidden + n;
      if (i == nan_at) {
        EXPECT_TRUE(std::isnan(value_of(got[r * kHidden + n])));
      } else {
        const float product = std::max(value_of(gate_up[i]), 0.0F) * value_of(gate_up[i + kHidden]);
        ASSERT_EQ(value_of(got[r * kHidden + n]), value_of(bits_of(product))) << r << ' ' << n;
      }
    }
  }
}

std::vector<std::uint32_t> some_words(std::size_t count) {
  std::vector<std::uint32_t> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint32_t>(i * 2654435761U + 1);
  return out;
}

TEST(BenchKernels, ReadAllReadsAllOnce) {
  // No multiple of what a round of the blocks reads.
  const std::vector<std::uint32_t> words = some_words(std::size_t{4} * (2 * 256 * 4 * 3 + 77));
  const DeviceBuffer<std::uint32_t> data(words);
  const DeviceBuffer<unsigned> sum(std::vector<unsigned>{0});
  launch_read_all({reinterpret_cast<const uint4*>(data.data()),
                   static_cast<std::int64_t>(words.size() / 4), sum.data()},
                  2, nullptr);
  unsigned expected = 0;
  for (const std::uint32_t w : words) expected += w;
  EXPECT_EQ(sum.read().front(), expected);
}

TEST(BenchKernels, ReadRowsReadsTheRowsOfTheirOrder) {
  constexpr std::uint32_t kReadRows = 11;
  constexpr std::size_t kWords = kReadRowBytes / 4;
  const std::vector<std::uint32_t> words = some_words(kReadRows * kWords);
  const DeviceBuffer<std::uint32_t> data(words);
  const DeviceBuffer<unsigned> sum(std::vector<unsigned>{0});
  launch_read_rows({reinterpret_cast<const std::uint16_t*>(data.data()), kReadRows, 3, sum.data()},
                   2, nullptr);
  unsigned expected = 0;
  for (std::uint32_t warp = 0; warp < 2 * kReadWarps; ++warp) {
    for (std::uint32_t i = 0; i < 3; ++i) {
      const std::uint32_t row = random_row(warp, i, kReadRows);
      ASSERT_LT(row, kReadRows);
      for (std::size_t w = 0; w < kWords; ++w) expected += words[row * kWords + w];
    }
  }
  EXPECT_EQ(sum.read().front(), expected);
}

TEST(BenchKernels, CopyAllCopiesAllAndNoMore) {
  const std::vector<std::uint32_t> words = some_words(std::size_t{4} * (2 * 256 * 4 * 3 + 77));
  const DeviceBuffer<std::uint32_t> from(words);
  const DeviceBuffer<std::uint32_t> to(words.size());
  launch_copy_all({reinterpret_cast<const uint4*>(from.data()), reinterpret_cast<uint4*>(to.data()),
                   static_cast<std::int64_t>(words.size() / 4)},
                  2, nullptr);
  EXPECT_EQ(to.read(), words);
}

// Rings that are longer than what they read, and short ones that go round many times.
TEST(BenchKernels, BulkRowsReadsTheRowsOfTheirOrder) {
  constexpr std::uint32_t kReadRows = 11;
  constexpr std::size_t kWords = kReadRowBytes / 4;
  const std::vector<std::uint32_t> words = some_words(kReadRows * kWords);
  const DeviceBuffer<std::uint32_t> data(words);
  for (const emulation::Order order :
       {emulation::Order::ascending, emulation::Order::descending, emulation::Order::shuffled}) {
    emulation::set_order(order);
    for (const int slots : {1, 2, 3, 5}) {
      for (const int rows_per_warp : {0, 2, 7}) {
        const DeviceBuffer<unsigned> sums(2 * kBulkWarps);
        launch_bulk_rows({reinterpret_cast<const std::byte*>(data.data()), kReadRows, rows_per_warp,
                          slots, sums.data()},
                         2, bulk_rows_shared_bytes(slots, 0), nullptr);
        std::vector<unsigned> expected(2 * kBulkWarps);
        for (std::uint32_t warp = 0; warp < expected.size(); ++warp) {
          for (int i = 0; i < rows_per_warp; ++i) {
            const std::uint32_t row = random_row(warp, static_cast<std::uint32_t>(i), kReadRows);
            for (std::size_t w = 0; w < kWords; ++w) expected[warp] += words[row * kWords + w];
          }
        }
        EXPECT_EQ(sums.read(), expected) << slots << " slots, " << rows_per_warp << " rows";
      }
    }
  }
  emulation::set_order(emulation::Order::ascending);
}

// One block an SM, whatever its ring: two would not fit the memory of an H100's SM, of which each
// takes 1 KB more than it asks for.
TEST(BenchKernels, BulkRowsHasAnSmForEachBlock) {
  constexpr std::size_t kBlock = std::size_t{227} << 10;
  for (const int slots : {1, 2, 3, 5}) {
    const std::size_t bytes = bulk_rows_shared_bytes(slots, kBlock);
    EXPECT_GT(2 * (bytes + 1024), std::size_t{228} << 10);
    EXPECT_LE(bytes, kBlock);
    EXPECT_GE(bytes, kBulkWarps * static_cast<std::size_t>(slots) * (kReadRowBytes + 8));
  }
}

// As many rows as 46 MB have are read alike often, also by warps that run at the same time.
TEST(BenchKernels, RandomRowsAreSpread) {
  constexpr std::uint32_t kReadRows = 11230;
  std::vector<int> reads(kReadRows);
  std::set<std::uint32_t> at_once;
  for (std::uint32_t warp = 0; warp < 4224; ++warp) {
    for (std::uint32_t i = 0; i < 128; ++i) reads[random_row(warp, i, kReadRows)] += 1;
    at_once.insert(random_row(warp, 0, kReadRows));
  }
  // 48 each on average: 7 standard deviations of a Poisson count.
  EXPECT_GT(*std::min_element(reads.begin(), reads.end()), 0);
  EXPECT_LT(*std::max_element(reads.begin(), reads.end()), 48 + 7 * 7);
  // 11230 (1 - e^(-4224 / 11230)) = 3521 different ones.
  EXPECT_NEAR(static_cast<double>(at_once.size()), 3521, 150);
}

// The document has what the estimates say today, whatever was measured since.
TEST(Predictions, AreThoseOfTheDocument) {
  std::ifstream file(TWELL_SOURCE_DIR "/cuda/bench/predictions.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::vector<std::string> names = variant_names({});
  for (const Prediction& one : predictions({})) {
    EXPECT_NE(text.find("| " + one.variant + " | " + one.text + " |"), std::string::npos)
        << one.variant << ": " << one.text << "; write twell_gpu_bench --predict into it";
    EXPECT_NE(std::find(names.begin(), names.end(), one.variant), names.end()) << one.variant;
  }
}

TEST(Predictions, CoverTraining) {
  Options options;
  options.tokens = {1};
  const std::vector<Prediction> all = predictions(options);
  const auto text_of = [&](const std::string& name) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const Prediction& one) { return one.variant == name; });
    return found == all.end() ? "none" : found->text;
  };
  for (const TrainCase& one : train_cases(options)) {
    const std::string text = text_of(one.name());
    const std::size_t ratio = text.find('(');
    ASSERT_NE(ratio, std::string::npos) << one.name() << ": " << text;
    EXPECT_GT(std::stod(text.substr(ratio + 1)), 1.0) << one.name();
    // Eager training adds a quarter to its GEMMs.
    const double dense = std::stod(text) * std::stod(text.substr(ratio + 1));
    EXPECT_NEAR(dense / std::stod(text_of(train_dense_name(one.tokens))), 1.25, 0.05) << one.name();
  }
}

// A shape that takes what its plan expects has the rate that the plan assumes, and one that takes
// twice as long behind the launch half of it.
TEST(GateRate, IsTheOneThatExplainsTheTime) {
  const cuda::Device device = h100();
  for (const std::int64_t tokens : {1000, 16384}) {
    const cuda::Problem problem{tokens, 2048, 5632, DType::bf16, true, true};
    for (const cuda::GemmShape shape : {cuda::GemmShape::tile64x64, cuda::GemmShape::tile128x128}) {
      const cuda::GemmPlan plan = cuda::plan_gemm_relu_twell(shape, device, problem);
      const double seconds = assumed_seconds(device, problem, plan);
      EXPECT_NEAR(rate_reached(device, problem, plan, seconds).value(), plan.rate, 1e-6);
      constexpr double kBesides = 1.2e-6 + 8e-6;  // a launch, and until the pipeline is full
      const double slower = 2 * (seconds - kBesides) + kBesides;
      EXPECT_NEAR(rate_reached(device, problem, plan, slower).value(), plan.rate / 2, 1e-6);
      EXPECT_FALSE(rate_reached(device, problem, plan, kBesides).has_value());
    }
  }
}

TEST(GateRate, IsNoneWhereItDecidesNothing) {
  const cuda::Device device = h100();
  cuda::Problem problem{33, 2048, 8448, DType::bf16, true, true};
  const auto reached = [&](cuda::GemmShape shape) {
    const cuda::GemmPlan plan = cuda::plan_gemm_relu_twell(shape, device, problem);
    return rate_reached(device, problem, plan, 50e-6);
  };
  // 33 tokens read 35 MB, 12 µs; their products are one wave of 11 µs.
  EXPECT_FALSE(reached(cuda::GemmShape::tile64x64).has_value());
  EXPECT_FALSE(reached(cuda::GemmShape::library).has_value());
  problem.tokens = 4;
  problem.screened = true;
  EXPECT_FALSE(reached(cuda::GemmShape::stream8x16).has_value());
  EXPECT_FALSE(reached(cuda::GemmShape::screen32x32).has_value());
}

TEST(GateRate, NamesThePlansOwnShape) {
  const cuda::Device device = h100();
  cuda::Problem problem{4, 2048, 5632, DType::bf16, true, true};
  EXPECT_TRUE(takes(device, problem, cuda::GemmShape::stream8x16));
  EXPECT_FALSE(takes(device, problem, cuda::GemmShape::stream16x32));
  problem.screened = true;
  EXPECT_FALSE(takes(device, problem, cuda::GemmShape::screen32x32));
  problem = {16384, 2048, 5632, DType::bf16, true, true};
  EXPECT_TRUE(takes(device, problem, cuda::GemmShape::library));
}

TEST(LineFit, FindsTheLineAndTheNearestOne) {
  const Point on_it[] = {{1, 7.5}, {2, 11.0}, {4, 18.0}};
  EXPECT_NEAR(fit_line(on_it).at_zero, 4.0, 1e-12);
  EXPECT_NEAR(fit_line(on_it).slope, 3.5, 1e-12);
  const Point beside_it[] = {{0, 0}, {1, 3}, {2, 0}};
  EXPECT_NEAR(fit_line(beside_it).at_zero, 1.0, 1e-12);
  EXPECT_NEAR(fit_line(beside_it).slope, 0.0, 1e-12);
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  CLI::App app;
  declare(app, options);
  app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // last one first
  return options;
}

TEST(Variants, AreNamedOnceAndInOrder) {
  const std::vector<std::string> names = variant_names({});
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(names.front(), "ceiling/copy");
  for (const char* name :
       {"ceiling/gemm_16384x5632x2048", "ceiling/l2_rows_46mb", "ceiling/launch_gap",
        "exact/29/300/small_blocks", "exact/563/full_row/splits_32", "exact/113/300/library",
        "exact/29/300/hot_50_percent", "exact/29/300/hot_50_percent/separate_up", "ffn/16384/29",
        "dense/1/563", "gate/256/113", "gather/64/29", "ffn/1/29/screened", "train/2048/56",
        "train/16384/282", "train_dense/16384", "gate_shape/4/screen32x32",
        "gate_shape/4/stream8x16", "gather_splits/16/8"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  const std::vector<std::string> exact = variant_names(parse({"--only", "exact", "--nnz", "29"}));
  EXPECT_EQ(exact.back().rfind("exact/29/", 0), 0U);
  EXPECT_EQ(
      variant_names(parse({"--only", "train", "--train-tokens", "64", "--train-nnz", "3"})).back(),
      "train/64/3");
  // Probes are named alone: no ceilings come before them, and none by themselves.
  const std::vector<std::string> probes = variant_names(parse({"--only", "probe-rows,probe-gate"}));
  EXPECT_EQ(probes.front(), "probe/gate/whole/plain");
  EXPECT_EQ(probes.back(), "probe/beside/12mb/sms_16/ring_40");
  EXPECT_EQ(std::set<std::string>(probes.begin(), probes.end()).size(), probes.size());
  EXPECT_EQ(variant_names(parse({"--only", "probe-gate,train"})).front(), "ceiling/copy");
  for (const auto& group : rows_probes()) {
    for (const RowsProbe& one : group) EXPECT_EQ(one.ring % kBulkWarps, 0) << one.name;
  }
  for (const ExactCase& one : exact_cases({})) {
    EXPECT_LE(one.first + one.tokens, kExactTokens) << one.name;
  }
}

TEST(Options, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(parse({"--tokens", "3,5", "--runs", "4"}).tokens, (std::vector<std::int64_t>{3, 5}));
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"--tokens"},
                                             {"--tokens", "1x"},
                                             {"--tokens", "0"},
                                             {"--nnz", ""},
                                             {"--runs", "1,2"},
                                             {"--only", "all"},
                                             {"--train-nnz", "-1"},
                                             {"--width", "12"},
                                             {"--sm-rows", "48"},
                                             {"--list", "--predict"},
                                             {"--what", "1"}}) {
    EXPECT_THROW(parse(arguments), CLI::ParseError) << arguments.front();
  }
}

TEST(Report, HasALineAsSoonAsItIsAdded) {
  const std::string path = testing::TempDir() + "gpu_bench_report.jsonl";
  Report report(path);
  const auto lines = [&] {
    std::ifstream in(path);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  };
  report.add({{"kind", "header"}, {"gpu", "a \"GPU\"\n\xff"}, {"sms", 132}});
  EXPECT_EQ(lines(), std::vector<std::string>{R"({"kind":"header","gpu":"a \"GPU\"\n)"
                                              "\xEF\xBF\xBD\",\"sms\":132}"});
  report.add({{"kind", "ffn"},
              {"us", 1.5},
              {"right", true},
              {"x", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(lines().back(), R"({"kind":"ffn","us":1.5,"right":true,"x":null})");
  EXPECT_THROW(Report("/nowhere/report"), Error);
}

}  // namespace
}  // namespace twell::bench
