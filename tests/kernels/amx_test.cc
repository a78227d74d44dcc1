// The AMX kernels as they ship, on machines without AMX too: amx_trap.cc executes what the
// processor lacks (the kernels need AVX-512 for the rest).
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "ops/gemm_input.h"
#include "tests/ops/ffn_fixture.h"

namespace twell {
namespace {

#define TWELL_NEEDS_AMX() \
  if (!cpu_tier_available(CpuTier::amx)) GTEST_SKIP() << "needs AVX-512 BF16"

// c of every column block of a GEMM on rows [begin, tokens), against fp64.
void check(std::int64_t tokens, std::int64_t depth, std::int64_t neurons, std::int64_t begin = 0) {
  test::Layer<bf16> layer({tokens, depth, neurons});
  const PackedWeight weight = layer.packed();
  const GemmInput input = {std::as_const(layer.x).view(), amx::kGemmX};
  std::vector<std::byte> prepared(input.prepared_bytes());
  if (!input.in_place()) input.prepare(0, tokens, prepared.data());
  GemmArgs args = input.args(prepared.data(), begin, tokens);
  args.weight = weight.view();
  std::vector<float> c(static_cast<std::size_t>(gemm_accumulators(args.rows)));
  args.c = c.data();
  for (std::int64_t first = 0; first < neurons; first += kColumnBlock) {
    const std::int64_t width = std::min(kColumnBlock, neurons - first);
    args.panel_begin = first / kPanel;
    args.panels = packed_panels(width);
    amx::gemm(args);
    for (std::int64_t r = 0; r < args.rows; ++r) {
      for (std::int64_t n = 0; n < width; ++n) {
        double sum = 0.0, magnitude = 0.0;
        for (std::int64_t k = 0; k < depth; ++k) {
          const double term =
              double{layer.x.value(begin + r, k)} * double{layer.gate.value(first + n, k)};
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(c[static_cast<std::size_t>(r * kSumStride + n)], sum,
                    test::accumulation_bound(static_cast<double>(depth), magnitude))
            << r << "," << first + n;
      }
    }
  }
}

TEST(Amx, TailSizes) {
  TWELL_NEEDS_AMX();
  for (std::int64_t tokens : {1, 4, 5, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 97, 289, 530}) {
    check(tokens, 96, 80);
  }
  for (std::int64_t depth : {1, 31, 32, 33, 255, 256, 257, 600}) check(40, depth, 48);
  for (std::int64_t neurons : {1, 15, 16, 17, 32, 33, 255, 256, 257, 530}) check(35, 64, neurons);
}

TEST(Amx, RowsFromTheMiddleOfTheTiles) {
  TWELL_NEEDS_AMX();
  for (std::int64_t begin : {16, 32, 48}) check(61, 300, 40, begin);
}

// Rows as they come, without the epilogue, onto what is there: the same sums as the portable
// kernel's, but for order.
TEST(Amx, AccumulatesLikeThePortableKernel) {
  TWELL_NEEDS_AMX();
  for (std::int64_t rows : {3, 16, 33, 70, 300}) {
    test::Layer<bf16> layer({rows, 288, 100});
    std::vector<float> wide(static_cast<std::size_t>(rows * 288));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t k = 0; k < 288; ++k) {
        wide[static_cast<std::size_t>(r * 288 + k)] = static_cast<float>(layer.x.at(r, k));
      }
    }
    const auto size = static_cast<std::size_t>(gemm_accumulators(rows));
    std::vector<float> got(size, 1.0F), expected(size, 1.0F);
    const ConstMatrixView x = std::as_const(layer.x).view();
    const PackedWeight weight = layer.packed();
    GemmArgs args;
    args.x = x.data;
    args.x_stride = x.row_stride;
    args.rows = rows;
    args.weight = weight.view();
    args.panel_begin = 1;
    args.panels = 6;
    args.c = got.data();
    args.accumulate = true;
    amx::gemm(args);
    args.x = wide.data();
    args.x_stride = 288;
    args.c = expected.data();
    weight_kernels_of(CpuTier::portable, DType::bf16, WeightType::bf16).gemm(args);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < 84; ++c) {
        const auto at = static_cast<std::size_t>(r * kSumStride + c);
        double magnitude = 1.0;
        for (std::int64_t k = 0; k < 288; ++k) {
          magnitude +=
              std::abs(static_cast<double>(layer.x.value(r, k)) * layer.gate.value(c + 16, k));
        }
        ASSERT_NEAR(got[at], expected[at], 2 * test::accumulation_bound(289, magnitude)) << r << c;
      }
    }
  }
}

// Integer sums are exact, and scaled in the same order: the bits of the vector kernel.
void check_screen(std::int64_t tokens, std::int64_t depth, std::int64_t neurons,
                  std::int64_t begin = 0) {
  SCOPED_TRACE(test::describe({tokens, depth, neurons}));
  const test::Layer<bf16> layer({tokens, depth, neurons});
  std::vector<float> axis(static_cast<std::size_t>(depth), 1.0F);
  const Screen screen(layer.gate.view(), axis.data());
  const ScreenParts view{screen.view()};
  const Kernels& vectors = avx512::kernels.bf16;
  const auto rows = static_cast<std::size_t>(tokens);
  const auto c_of = [&](std::int64_t x_block, auto* gemm) {
    const std::int64_t bytes =
        x_block > 0 ? TileOrder::blocks(depth) * x_block : tokens * code_depth(depth);
    std::vector<std::uint8_t> x8(static_cast<std::size_t>(bytes));
    std::vector<float> scales(rows * static_cast<std::size_t>(code_blocks(depth)));
    std::vector<ScreenedRow> figures(rows);
    const ScreenedRows x = {x8.data(), scales.data(), figures.data(), x_block};
    for (std::int64_t r = 0; r < tokens; ++r) {
      vectors.screen_row(layer.x.view().row_bytes(r), view, x.from(r, depth));
    }
    std::vector<float> all;
    for (std::int64_t first = 0; first < neurons; first += kColumnBlock) {
      const std::int64_t width = std::min(kColumnBlock, neurons - first);
      std::vector<float> c(static_cast<std::size_t>(gemm_accumulators(tokens - begin)));
      gemm({x.from(begin, depth), tokens - begin, view, first / kPanel, packed_panels(width),
            c.data()});
      for (std::int64_t r = 0; r < tokens - begin; ++r) {
        const float* row = c.data() + r * kSumStride;
        all.insert(all.end(), row, row + width);
      }
    }
    return all;
  };
  const std::vector<float> expected = c_of(0, vectors.screen_gemm);
  const std::vector<float> got = c_of(TileOrder::block(tokens, 1), amx::screen_gemm);
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0);
}

TEST(Amx, ScreensHaveTheBitsOfVectors) {
  TWELL_NEEDS_AMX();
  for (std::int64_t tokens : {1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 65, 289}) {
    check_screen(tokens, 600, 80);
  }
  for (std::int64_t depth : {1, 63, 64, 65, 255, 256, 257, 511, 512, 513, 768, 1030}) {
    check_screen(40, depth, 48);
  }
  for (std::int64_t neurons : {1, 15, 16, 17, 32, 33, 255, 256, 257, 530}) {
    check_screen(35, 64, neurons);
  }
  for (std::int64_t begin : {16, 32, 48}) check_screen(61, 300, 40, begin);
}

}  // namespace
}  // namespace twell
