#include "decoder/matmul_attention.h"

#include <ATen/Parallel.h>
#include <ATen/cpu/Utils.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace twell::lm {
namespace {

constexpr double kMasked = -std::numeric_limits<double>::infinity();

// Some key-value heads of a task: what one thread does at a time.
struct Tile {
  const AttentionTask* task;
  std::int64_t first;  // key-value head
  std::int64_t heads;
};

// Queries of all heads of a tile: enough to make a call worth its overhead (10 µs a product, as
// much as 128 rows of one head take). Measured at 512 tokens, 32 heads of 64, one core: 9.1 ms;
// with a quarter 9.7, with four times as many 10.9.
constexpr std::int64_t kQueries = 8 * 128;
// Their scores, 1 MB: an L2 cache, and little enough for the C library to keep the memory between
// tiles. With 4 MB at 2048 tokens a third of the time went into new pages.
constexpr std::int64_t kScores = kQueries * 512;
constexpr std::int64_t kPositions = 128;  // of a block; the last square of its scores is half waste

// `future`: [positions of a block, the same], true above the diagonal.
void run(const Tile& tile, const at::Tensor& future) {
  const AttentionTask& task = *tile.task;
  const std::int64_t n = task.q.size(0);
  const std::int64_t d = task.q.size(2);
  const std::int64_t groups = task.q.size(1) / task.k.size(0);  // query heads that share keys
  const auto own = [&](const at::Tensor& rows) {                // [groups · heads, n, d]
    return rows.narrow(1, tile.first * groups, tile.heads * groups).transpose(0, 1);
  };
  const at::Tensor q = own(task.q);
  const at::Tensor out = own(task.out);
  const at::Tensor k = task.k.narrow(0, tile.first, tile.heads);
  const at::Tensor v = task.v.narrow(0, tile.first, tile.heads);
  const std::int64_t most_positions = future.size(0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  for (std::int64_t row = 0; row < n; row += most_positions) {
    const std::int64_t count = std::min(most_positions, n - row);
    const std::int64_t visible = task.start + row + count;
    // Copies, since oneDNN is called with dense operands: a small share of the work of many
    // queries.
    const at::Tensor some_k = k.narrow(1, 0, visible).contiguous();
    const at::Tensor some_v = v.narrow(1, 0, visible).contiguous();
    const at::Tensor some_q = q.narrow(1, row, count).reshape({tile.heads, groups * count, d});
    at::Tensor scores = at::empty({tile.heads, groups * count, visible}, q.options());
    at::baddbmm_out(scores, scores, some_q, some_k.transpose(1, 2), 0, scale);
    if (count > 1) {
      scores.view({tile.heads, groups, count, visible})
          .narrow(3, visible - count, count)
          .masked_fill_(future.narrow(0, 0, count).narrow(1, 0, count), kMasked);
    }
    const at::Tensor mixed = at::bmm(at::softmax(scores, -1), some_v);
    out.narrow(1, row, count).copy_(mixed.view({tile.heads * groups, count, d}));
  }
}

bool has(const char* feature) {
  const auto all = at::cpu::get_cpu_capabilities();
  const auto found = all.find(feature);
  return found != all.end() && found->second.isBool() && found->second.toBool();
}

}  // namespace

void matmul_attention(std::span<const AttentionTask> tasks) {
  if (tasks.empty()) return;
  const auto threads = static_cast<std::int64_t>(at::get_num_threads());
  const auto count = static_cast<std::int64_t>(tasks.size());
  const std::int64_t kv_heads = tasks[0].k.size(0);
  const std::int64_t groups = tasks[0].q.size(1) / kv_heads;
  const std::int64_t positions = std::clamp(kQueries / groups, std::int64_t{16}, kPositions);
  // Few sequences: at least one tile for every thread.
  const std::int64_t wanted = (threads + count - 1) / count;
  std::vector<Tile> tiles;
  for (const AttentionTask& task : tasks) {
    const std::int64_t rows = std::min(task.q.size(0), positions) * groups;
    const std::int64_t fitting =
        std::min(kQueries / rows, kScores / (rows * (task.start + task.q.size(0))));
    const std::int64_t heads =
        std::clamp(std::min(fitting, (kv_heads + wanted - 1) / wanted), std::int64_t{1}, kv_heads);
    for (std::int64_t first = 0; first < kv_heads; first += heads) {
      tiles.push_back({&task, first, std::min(heads, kv_heads - first)});
    }
  }
  const at::Tensor future = at::ones({positions, positions}, at::kBool).triu_(1);
  const bool inference = c10::InferenceMode::is_enabled();
  std::atomic<std::size_t> next = 0;  // sequences differ in length
  at::parallel_for(0, std::min(threads, static_cast<std::int64_t>(tiles.size())), 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     // These modes belong to a thread, not to whom it works for.
                     const c10::InferenceMode mode(inference);
                     const at::NoGradGuard no_grad;
                     for (; begin < end; ++begin) {
                       for (std::size_t i; (i = next++) < tiles.size();) {
                         run(tiles[i], future);
                       }
                     }
                   });
}

bool matmul_attention_is_faster(at::ScalarType dtype) {
  // f32: both call MKL, and the fused operator never has the scores in memory.
  // bf16: the fused operator calls MKL's GEMM, which on AMD processors is a generic one: 28 ms on
  // one core for 512 tokens of 32 heads of 64, against 9 ms with oneDNN's, which at::bmm calls
  // where there are bf16 instructions. With AMX it reached 0.2 TFLOP/s on two cores whose tiles
  // multiply 6.5, at 512 tokens; batched products have not been timed there.
  static const bool fast_products = has("avx512_bf16");
  return dtype == at::kBFloat16 && fast_products;
}

}  // namespace twell::lm
