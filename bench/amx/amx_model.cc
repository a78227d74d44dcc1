// twell_amx_model: what the AMX kernels should take on a Sapphire Rapids, as tables in markdown.
//
// The kernels' own sources run over a model of the caches (caches.h), which counts what they move.
// Times follow from rates that small programs measured on two cores of such a processor (virtual
// machine, 2 MB of L2 a core): docs/amx-model.md has the rates, the formula and how far it was
// right about kernels that did run there.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <map>
#include <memory>
#include <utility>

#include "bench/amx/caches.h"
#include "kernels/cpu/kernels.h"
#include "measure/popularity.h"
#include "twell/tuning.h"

namespace twell::amx_model {
namespace {

// Of one core, a cycle: tiles of 16 × 16 sums over 64 bytes, and bytes.
constexpr double kMultiplication = 16;  // cycles
constexpr double kL2 = 52, kL3 = 9.1;   // 166 and 29 GB/s at 3.17 GHz
constexpr double kHertz = 3.17e9;
constexpr int kCores = 2;

// The layer that everything was measured with, and its dense form there, in ms.
constexpr std::int64_t kWidth = 2048, kHidden = 5632;
constexpr std::int64_t kGroupRows = 192;  // of the gate's GEMM: plan_ffn(), 2 MB of L2
struct Dense {
  std::int64_t tokens;
  double ms;
};
constexpr Dense kDense[] = {{64, 2.67}, {512, 14.1}, {2048, 60.2}};

// Neurons that fire for a token, and the share that a screen leaves of 64 tokens, as `twell bench
// ffn` prints it: on AMX what it is on AVX-512.
struct Activity {
  double nnz, candidates;
};
constexpr Activity kActivity[] = {{29, 0.024}, {113, 0.064}, {282, 0.127}, {563, 0.211}};
// A layer has a screen for calls of any size, or none.
bool takes_screen(const Activity& activity) {
  return activity.candidates <= tuning_of(CpuTier::amx).screen_limit;
}

struct Memory {
  explicit Memory(std::int64_t bytes)
      : data(std::aligned_alloc(kPage, static_cast<std::size_t>((bytes + kPage) / kPage * kPage)),
             &std::free) {}
  static constexpr std::int64_t kPage = 2 << 20;  // so that a set is the same in every run
  std::unique_ptr<void, void (*)(void*)> data;
};

enum class Form { packed, screened };

// A gate's GEMM over all its neurons, when the one before has left the caches as they are.
Counts count_gate(Form form, std::int64_t rows) {
  const Memory x(TileOrder::blocks(kWidth) * TileOrder::block(rows, 2));
  const Memory weight(2 * kHidden * kWidth);
  const Memory sums(gemm_accumulators(rows) * 4);
  const Memory scales(rows * code_blocks(kWidth) * 4);
  auto* const c = static_cast<float*>(sums.data.get());
  for (int pass = 0; pass < 2; ++pass) {
    core.counts = {};
    for (std::int64_t first = 0; first < kHidden; first += kColumnBlock) {
      if (form == Form::packed) {
        GemmArgs args;
        args.x = x.data.get();
        args.x_block = TileOrder::block(rows, 2);
        args.rows = rows;
        args.weight = packed_view(weight.data.get(), WeightType::bf16, kHidden, kWidth);
        args.panel_begin = first / kPanel;
        args.panels = kColumnBlock / kPanel;
        args.c = c;
        amx::gemm(args);
      } else {
        const ScreenedRows x8 = {static_cast<std::uint8_t*>(x.data.get()),
                                 static_cast<float*>(scales.data.get()), nullptr,
                                 TileOrder::block(rows, 1)};
        amx::screen_gemm({x8,
                          rows,
                          {weight.data.get(), kHidden, kWidth},
                          first / kPanel,
                          kColumnBlock / kPanel,
                          c});
      }
    }
  }
  if (form == Form::screened) {  // sums are added to c by vectors, which nothing counts: in and out
    const std::int64_t times = (code_blocks(kWidth) + 1) / 2;
    core.counts.l2 += 2 * times * rows * kHidden * 4 / 64;
  }
  return core.counts;
}

// Cycles of one core. Nothing overlaps but what is fetched ahead: with that the model is right
// about the kernel that ran (docs/amx-model.md); tiles wait for L2, and L2 for L3.
double cycles(const Counts& counts) {
  const double waits = kMultiplication * static_cast<double>(counts.multiplications) +
                       64 * static_cast<double>(counts.l2) / kL2 +
                       64 * static_cast<double>(counts.l3) / kL3;
  return std::max(waits, 64 * static_cast<double>(counts.l3 + counts.fetched) / kL3);
}

void print_gemms() {
  std::puts("| rows | form | L2, bytes a cycle | L3, waited for | fetched ahead | T/s a core |");
  std::puts("| --- | --- | --- | --- | --- | --- |");
  for (const Form form : {Form::packed, Form::screened}) {
    for (const std::int64_t rows : {32, 64, 128, 192, 256}) {
      const Counts counts = count_gate(form, rows);
      const double tiles = kMultiplication * static_cast<double>(counts.multiplications);
      const auto rate = [&](std::int64_t lines) { return 64 * static_cast<double>(lines) / tiles; };
      const double operations = 2.0 * static_cast<double>(rows * kHidden * kWidth);
      std::printf("| %d | %s | %.0f | %.1f | %.1f | %.1f |\n", static_cast<int>(rows),
                  form == Form::packed ? "bf16" : "int8", rate(counts.l2), rate(counts.l3),
                  rate(counts.fetched), operations / cycles(counts) * kHertz * 1e-12);
    }
  }
}

// Counted once for each form and group of rows.
double gate_cycles(Form form, std::int64_t rows) {
  static std::map<std::pair<Form, std::int64_t>, double> known;
  const auto [found, added] = known.try_emplace({form, rows}, 0);
  if (added) found->second = cycles(count_gate(form, rows));
  return found->second;
}

// Of the layer, in ms on two cores.
struct Layer {
  double packed, screened, gather;
};
Layer predict(std::int64_t tokens, const Activity& activity) {
  // A neuron's rows of up and down: row by row, or in pieces of columns, of neurons that many or
  // fewer rows share; and multiplied densely with one row, at 1.6 TFLOP/s.
  constexpr double kPair = 125 + 145, kPieces = 2 * 95, kSharedPieces = 2 * 78, kHotRow = 10;  // ns
  constexpr std::int64_t kPiecesFrom = 256;
  // Beside a screen: bounds of a token's neuron, and the dot product of a candidate.
  constexpr double kBound = 0.2, kCandidate = 25;  // ns
  const double pair = tokens < kPiecesFrom ? kPair : activity.nnz < 100 ? kPieces : kSharedPieces;
  measure::ActivityShape shape;
  shape.mean_nnz = activity.nnz;
  const double hot_share = tuning_of(CpuTier::amx).hot_share;
  double pairs = 0, hot = 0;
  for (const double share : measure::neuron_popularity(kHidden, shape, 1)) {
    (share > hot_share ? hot : pairs) += share > hot_share ? 1 : share;
  }
  const auto rows = static_cast<double>(tokens);
  const std::int64_t group = std::min(tokens, kGroupRows);
  const auto gate = [&](Form form) {
    return gate_cycles(form, group) / kHertz * 1e3 * rows / static_cast<double>(group);
  };
  const double bounds = static_cast<double>(kHidden) * (kBound + activity.candidates * kCandidate);
  return {gate(Form::packed) / kCores, (gate(Form::screened) + rows * bounds * 1e-6) / kCores,
          rows * (pairs * pair + hot * kHotRow) * 1e-6 / kCores};
}

void print_layers() {
  std::puts(
      "| non-zeros | tokens | dense, ms | gate bf16 | gate by screen | up, down | expected |");
  std::puts("| --- | --- | --- | --- | --- | --- | --- |");
  for (const Activity& activity : kActivity) {
    for (const auto& [tokens, dense] : kDense) {
      const Layer layer = predict(tokens, activity);
      const double gate = takes_screen(activity) ? layer.screened : layer.packed;
      std::printf("| %.0f | %d | %.1f | %.1f | %.1f | %.1f | %.1f × |\n", activity.nnz,
                  static_cast<int>(tokens), dense, layer.packed, layer.screened, layer.gather,
                  dense / (gate + layer.gather));
    }
  }
}

// Few tokens wait for memory: what a call reads of it, each row of a weight once.
void print_floors() {
  constexpr double kRow = 2.0 * kWidth, kDenseBytes = 3 * kHidden * kRow;
  constexpr Dense kFewTokens[] = {{1, 1.46}, {8, 1.49}};
  std::puts(
      "| non-zeros | tokens | read with a screen, MB | packed, MB | at most, screened | packed |");
  std::puts("| --- | --- | --- | --- | --- | --- |");
  for (const auto& [nnz, candidates] : kActivity) {
    measure::ActivityShape shape;
    shape.mean_nnz = nnz;
    const auto popularity = measure::neuron_popularity(kHidden, shape, 1);
    for (const auto& [tokens, ms] : kFewTokens) {
      const auto rows = [&, n = tokens](double times) {  // that some token wants
        double sum = 0;
        for (const double share : popularity) {
          sum += 1 - std::pow(1 - std::min(times * share, 1.0), static_cast<double>(n));
        }
        return sum;
      };
      const double up_down = 2 * kRow * rows(1);
      const double packed = kHidden * kRow + up_down;
      const double screened = static_cast<double>(screen_bytes(kHidden, kWidth)) +
                              kRow * rows(candidates * static_cast<double>(kHidden) / nnz) +
                              up_down;
      const double bytes_a_second = kDenseBytes / kFewTokens[0].ms * 1e3;  // what dense reads
      const auto at_most = [&, dense = ms](double bytes) {
        return dense * 1e-3 * bytes_a_second / bytes;
      };
      std::printf("| %.0f | %d | %.1f | %.1f | %.1f × | %.1f × |\n", nnz, static_cast<int>(tokens),
                  screened * 1e-6, packed * 1e-6, at_most(screened), at_most(packed));
    }
  }
}

}  // namespace
}  // namespace twell::amx_model

int main() {
  if (!twell::cpu_tier_available(twell::CpuTier::avx512)) {
    std::puts("twell_amx_model: needs AVX-512, which the screen's kernel uses beside tiles");
    return 0;
  }
  twell::amx_model::print_gemms();
  std::puts("");
  twell::amx_model::print_layers();
  std::puts("");
  twell::amx_model::print_floors();
}
