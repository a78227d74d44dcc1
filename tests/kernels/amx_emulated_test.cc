// The AMX kernel's own source over emulated tiles: its blocking, tails and configuration are tested
// on machines without AMX too (they need AVX-512 for the rest of the kernel).
#include "kernels/cpu/kernels.h"
#include "ops/gemm_input.h"
#include "tests/ops/ffn_fixture.h"

namespace twell {
namespace {

void check(std::int64_t tokens, std::int64_t depth, std::int64_t hidden, std::int32_t tile) {
  test::Layer<bf16> layer({tokens, depth, hidden});
  const GemmInput input = {std::as_const(layer.x).view(), layer.packed(),
                           amx::gemm_relu_twell_bf16.x};
  std::vector<std::byte> prepared(input.prepared_bytes());
  input.prepare(0, tokens, prepared.data());
  const GemmArgs x = input.args(prepared.data(), 0, tokens);
  std::vector<float> accumulators(static_cast<std::size_t>(gemm_accumulators(tokens)));
  TwellMatrix out({tokens, hidden, tile, 8, DType::bf16});
  GemmReluTwellArgs args;
  args.x = x.x;
  args.x_stride = x.x_stride;
  args.rows = tokens;
  args.weight = layer.packed();
  args.panel_end = packed_panels(hidden);
  args.out = out.view();
  args.accumulators = accumulators.data();
  amx::gemm_relu_twell_bf16.run(args);
  test::expect_activation(out, layer.x, layer.gate, {});
}

TEST(AmxEmulated, TailSizes) {
  if (!cpu_tier_available(CpuTier::avx512)) GTEST_SKIP() << "needs AVX-512 BF16";
  for (std::int64_t tokens : {1, 4, 5, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 97}) {
    check(tokens, 96, 80, 256);
  }
  for (std::int64_t depth : {1, 31, 32, 33, 255, 256, 257, 600}) check(40, depth, 48, 16);
  for (std::int64_t hidden : {1, 15, 16, 17, 32, 33, 255, 256, 257, 530})
    check(35, 64, hidden, 512);
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
    GemmArgs args = {x.data, x.row_stride, rows, layer.packed(), 1, 6, got.data(), true};
    amx::gemm_bf16.run(args);
    args.x = wide.data();
    args.x_stride = 288;
    args.c = expected.data();
    portable::gemm_bf16.run(args);
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
