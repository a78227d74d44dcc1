// The AMX kernel's own source over emulated tiles: its blocking, tails and configuration are tested
// on machines without AMX too (they need AVX-512 for the rest of the kernel).
#include "kernels/cpu/kernels.h"
#include "ops/gemm_input.h"
#include "tests/ops/ffn_fixture.h"

namespace twell {
namespace {

void check(std::int64_t tokens, std::int64_t depth, std::int64_t hidden) {
  test::Layer<bf16> layer({tokens, depth, hidden});
  const PackedWeight weight = layer.packed();
  const GemmInput input = {std::as_const(layer.x).view(), amx::kGemmX};
  std::vector<std::byte> prepared(input.prepared_bytes());
  if (!input.in_place()) input.prepare(0, tokens, prepared.data());
  GemmArgs args = input.args(prepared.data(), 0, tokens);
  args.weight = PackedView(weight);
  std::vector<float> c(static_cast<std::size_t>(gemm_accumulators(tokens)));
  args.c = c.data();
  for (std::int64_t first = 0; first < hidden; first += kColumnBlock) {
    const std::int64_t width = std::min(kColumnBlock, hidden - first);
    args.panel_begin = first / kPanel;
    args.panels = packed_panels(width);
    amx::gemm(args);
    for (std::int64_t r = 0; r < tokens; ++r) {
      for (std::int64_t n = 0; n < width; ++n) {
        double sum = 0.0, magnitude = 0.0;
        for (std::int64_t k = 0; k < depth; ++k) {
          const double term = double{layer.x.value(r, k)} * double{layer.gate.value(first + n, k)};
          sum += term;
          magnitude += std::abs(term);
        }
        ASSERT_NEAR(c[static_cast<std::size_t>(r * kColumnBlock + n)], sum,
                    test::accumulation_bound(static_cast<double>(depth), magnitude))
            << r << "," << first + n;
      }
    }
  }
}

TEST(AmxEmulated, TailSizes) {
  if (!cpu_tier_available(CpuTier::avx512)) GTEST_SKIP() << "needs AVX-512 BF16";
  for (std::int64_t tokens : {1, 4, 5, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 97}) {
    check(tokens, 96, 80);
  }
  for (std::int64_t depth : {1, 31, 32, 33, 255, 256, 257, 600}) check(40, depth, 48);
  for (std::int64_t hidden : {1, 15, 16, 17, 32, 33, 255, 256, 257, 530}) check(35, 64, hidden);
}

// Without the epilogue, onto what is there: the same sums as the portable kernel's, but for order.
TEST(AmxEmulated, AccumulatesLikeThePortableKernel) {
  if (!cpu_tier_available(CpuTier::avx512)) GTEST_SKIP() << "needs AVX-512 BF16";
  for (std::int64_t rows : {3, 16, 33, 70}) {
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
    GemmArgs args = {x.data, x.row_stride, rows, PackedView(weight), 1, 6, got.data(), true};
    amx::gemm(args);
    args.x = wide.data();
    args.x_stride = 288;
    args.c = expected.data();
    portable::kernels_bf16.gemm(args);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < 84; ++c) {
        const auto at = static_cast<std::size_t>(r * kColumnBlock + c);
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

}  // namespace
}  // namespace twell
