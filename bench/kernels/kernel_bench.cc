// twell_kernel_bench: rates of the CPU kernels that a layer's time is made of, on one core, as
// tables in markdown.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "bench/kernels/ggml_downs.h"
#include "bench/kernels/peak.h"
#include "bench/kernels/timer.h"
#include "format/screen_parts.h"
#include "ops/forward/gather_pieces.h"
#include "ops/gemm_input.h"
#include "synth/popularity.h"
#include "twell/tuning.h"

namespace twell::bench {
namespace {

constexpr std::int64_t kWidth = 2048, kHidden = 5632;
constexpr std::int64_t kTokens = 1024;  // of a block that gathers

// bf16 numbers with rows some elements apart, in whole pages.
class Matrix {
 public:
  Matrix(std::int64_t rows, std::int64_t cols, std::int64_t stride)
      : rows_(rows), cols_(cols), stride_(stride) {
    constexpr std::int64_t kPage = 4096;
    const std::int64_t bytes = rows * stride * 2;
    data_.reset(static_cast<bf16*>(
        std::aligned_alloc(kPage, static_cast<std::size_t>((bytes + kPage) / kPage * kPage))));
    std::minstd_rand random(1);
    for (std::int64_t i = 0; i < rows * stride; ++i) {
      data_[i] = bf16(static_cast<float>(random() % 201) * 0.01F - 1);
    }
  }
  ConstMatrixView view() const { return {data_.get(), DType::bf16, rows_, cols_, stride_}; }
  MatrixView mutable_view() { return {data_.get(), DType::bf16, rows_, cols_, stride_}; }

 private:
  struct Free {
    void operator()(bf16* data) const { std::free(data); }
  };
  std::int64_t rows_, cols_, stride_;
  std::unique_ptr<bf16[], Free> data_;
};

// f(first panel, panels) for the gate's column blocks.
template <class F>
void for_column_blocks(F f) {
  for (std::int64_t first = 0; first < kHidden; first += kColumnBlock) {
    f(first / kPanel, kColumnBlock / kPanel);
  }
}

double packed_seconds(CpuTier tier, const Matrix& x, const PackedWeight& packed,
                      std::int64_t rows) {
  const Weight weight(tier, DType::bf16, packed.view());
  const GemmInput input = {x.view().slice(0, rows), kernels_of(tier, DType::bf16).x};
  std::vector<std::byte> prepared(input.in_place() ? 0 : input.prepared_bytes());
  if (!input.in_place()) input.prepare(0, rows, prepared.data());
  std::vector<float> c(static_cast<std::size_t>(gemm_accumulators(rows)));
  GemmArgs args = input.args(prepared.data(), 0, rows);
  args.weight = weight;
  args.c = c.data();
  return least_seconds([&] {
    for_column_blocks([&](std::int64_t panel, std::int64_t panels) {
      args.panel_begin = panel;
      args.panels = panels;
      weight.kernels->gemm(args);
    });
  });
}

double screen_seconds(CpuTier tier, const Matrix& x, const Screen& screen, std::int64_t rows) {
  const Kernels& kernels = kernels_of(tier, DType::bf16);
  const ScreenParts view{screen.view()};
  std::vector<std::uint8_t> x8(
      static_cast<std::size_t>(TileOrder::blocks(kWidth) * TileOrder::block(rows, 1)));
  std::vector<float> scales(static_cast<std::size_t>(rows * code_blocks(kWidth)));
  std::vector<ScreenedRow> figures(static_cast<std::size_t>(rows));
  const ScreenedRows to = {x8.data(), scales.data(), figures.data(), kernels.x8_block(rows)};
  for (std::int64_t r = 0; r < rows; ++r) {
    kernels.screen_row(x.view().row_bytes(r), view, to.from(r, kWidth));
  }
  std::vector<float> c(static_cast<std::size_t>(gemm_accumulators(rows)));
  return least_seconds([&] {
    for_column_blocks([&](std::int64_t panel, std::int64_t panels) {
      kernels.screen_gemm({to, rows, view, panel, panels, c.data()});
    });
  });
}

void print_gemms(CpuTier tier) {
  const Matrix x(512, kWidth, kWidth), gate(kHidden, kWidth, kWidth);
  const PackedWeight packed(gate.view());
  const Screen screen(gate.view(), nullptr);
  const double most[] = {peak_bf16(tier), peak_int8(tier)};
  std::puts("| rows | bf16, T/s | of peak | int8, T/s | of peak |");
  std::puts("| --- | --- | --- | --- | --- |");
  std::printf("| registers | %.2f | | %.2f | |\n", most[0] * 1e-12, most[1] * 1e-12);
  for (const std::int64_t rows : {1, 8, 32, 64, 128, 192, 256, 512}) {
    const double operations = 2.0 * static_cast<double>(rows * kHidden * kWidth);
    const double rates[] = {operations / packed_seconds(tier, x, packed, rows),
                            operations / screen_seconds(tier, x, screen, rows)};
    std::printf("| %d |", static_cast<int>(rows));
    for (int i = 0; i < 2; ++i) {
      std::printf(" %.2f |", rates[i] * 1e-12);
      if (most[i] > 0) std::printf(" %.0f %%", 100 * rates[i] / most[i]);
      std::printf(" |");
    }
    std::puts("");
  }
}

// An activation of kTokens rows whose neurons fire as often as in trained models.
struct Activation {
  explicit Activation(double nnz)
      : counts(kTokens), slots(static_cast<std::size_t>(kTokens * kHidden)) {
    lm::ActivityShape shape;
    shape.mean_nnz = nnz;
    const std::vector<double> popularity = lm::neuron_popularity(kHidden, shape, 1);
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform(0, 1);
    for (std::int64_t r = 0; r < kTokens; ++r) {
      std::int32_t& n = counts[static_cast<std::size_t>(r)];
      for (std::int64_t i = 0; i < kHidden; ++i) {
        if (uniform(random) >= popularity[static_cast<std::size_t>(i)]) continue;
        slots[static_cast<std::size_t>(r * kHidden + n++)] =
            make_slot(static_cast<std::uint32_t>(i), bf16(1.0F));
      }
      pairs += n;
    }
  }
  TwellView view() {
    return {1,
            kHidden,
            kHidden,
            sizeof(TwellSlot16),
            counts.data(),
            reinterpret_cast<std::byte*>(slots.data())};
  }
  std::vector<std::int32_t> counts;
  std::vector<TwellSlot16> slots;
  std::int64_t pairs = 0;
};

// Nanoseconds for a row of down, and one of up, of a neuron that fired.
struct PairTimes {
  double up, down;
};
PairTimes pair_times(CpuTier tier, Activation& activation, std::int64_t stride,
                     std::int64_t columns) {
  const Matrix x(kTokens, kWidth, kWidth), up(kHidden, kWidth, stride),
      down(kHidden, kWidth, stride);
  Matrix y(kTokens, kWidth, kWidth);
  const auto seconds = [&](bool with_up) {
    const FfnForm form;
    UpDown weights(tier, DType::bf16, {}, down.view());
    if (with_up) weights.up.emplace(tier, DType::bf16, up.view());
    SparseRows work = {kernels_of(tier, DType::bf16), form, activation.view(), weights, 1, columns};
    work.x = x.view();
    work.y = y.mutable_view();
    Context context({.threads = 1, .tier = {}});
    take_scratch(context, work, kTokens, 1);
    return least_seconds(
        [&] { parallel(context, [&](Team& team) { run_sparse_rows(team, context, work); }); });
  };
  const double all = seconds(true), of_down = seconds(false);
  const double ns = 1e9 / static_cast<double>(activation.pairs);
  return {(all - of_down) * ns, of_down * ns};
}

void print_gathers(CpuTier tier) {
  std::puts("| non-zeros | rows of weights | taken | up, ns | down, ns |");
  std::puts("| --- | --- | --- | --- | --- |");
  for (const double nnz : {29.0, 113.0, 282.0}) {
    if (runs == 1 && nnz > 29) break;
    Activation activation(nnz);
    for (const std::int64_t stride : {kWidth, spread_stride(kWidth, sizeof(bf16))}) {
      for (const std::int64_t columns : {0, 256}) {
        const auto [up, down] = pair_times(tier, activation, stride, columns);
        std::printf("| %.0f | %d bytes apart | %s | %.0f | %.0f |\n", nnz,
                    static_cast<int>(stride * 2), columns > 0 ? "in pieces of 256" : "whole", up,
                    down);
      }
    }
  }
}

}  // namespace
}  // namespace twell::bench

int main(int argc, char** argv) {
  using namespace twell;  // NOLINT(google-build-using-namespace): a program
  if (argc == 2 && std::string_view(argv[1]) == "--quick") {
    bench::runs = 1;  // whether it runs, no figures
  } else if (argc > 1) {
    std::fprintf(stderr, "twell_kernel_bench: unknown option %s; it has --quick alone\n", argv[1]);
    return 1;
  }
  const CpuTier tier = Context({.threads = 1, .tier = {}}).tier();
  std::printf("%s, %s, one core; D = 2048, H = 5632, bf16\n\n", processor_name().c_str(),
              name_of(tier));
  bench::print_gemms(tier);
  std::puts("");
  bench::print_gathers(tier);
  for (const int threads : {1, 2}) {
    std::puts("");
    bench::print_ggml_downs(threads);
  }
}
