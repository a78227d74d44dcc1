// The weight gradients, neuron by neuron: sums over the rows that fired it, rows ascending.
//
// A neuron that few rows fired gathers their x and dy. Both are copied piece by piece before, [D /
// width][M][width]: a piece of all rows then stays in L2, while rows as they lie, 4 KB apart, fall
// into the same cache sets.
#include <algorithm>

#include "ops/backward/column_pieces.h"
#include "ops/backward/weight_gradients.h"
#include "ops/scratch.h"
#include "twell/device.h"

namespace twell {
namespace {

void clear(const MatrixView& out, std::int64_t row) {
  std::fill_n(out.row_bytes(row), static_cast<std::size_t>(out.cols) * size_of(out.dtype),
              std::byte{});
}

// Columns of a piece: all rows of it in a third of L2.
std::int64_t piece_width(std::int64_t rows, DType dtype) {
  constexpr std::int64_t kNarrowest = 64, kWidest = 512;
  const auto bytes = static_cast<std::int64_t>(size_of(dtype)) * rows * 3;
  std::int64_t width = kWidest;
  while (width > kNarrowest && width * bytes > cpu_caches().l2) width /= 2;
  return width;
}

}  // namespace

void gather_weight_gradients(Context& context, const BackwardCall& call) {
  constexpr std::int64_t kNeurons = 64;  // of a unit of work
  const WeightGradients gradients = gradients_of(call);
  const FfnBackward& in = call.in;
  const std::int64_t neurons = in.pattern.cols;
  const std::int64_t width = piece_width(in.x.rows, in.x.dtype);
  const auto bytes = [](const ConstMatrixView& m) {
    return static_cast<std::size_t>(m.rows * m.cols) * size_of(m.dtype);
  };
  auto* data = static_cast<std::byte*>(context.scratch(0, kPieces, bytes(in.x) + bytes(in.dy)));
  const ColumnPieces x = {in.x, width, data};
  const ColumnPieces dy = {in.dy, width, data + bytes(in.x)};
  for (int t = 0; t < call.plan.threads; ++t) {
    context.scratch(t, kPartialY, static_cast<std::size_t>(width) * sizeof(float));
  }
  const std::int64_t chunks = (neurons + kNeurons - 1) / kNeurons;
  parallel(context, [&](Team& team) {
    auto* sum = static_cast<float*>(context.scratch(team.thread(), kPartialY, 0));
    team.for_static(in.x.rows, [&](std::int64_t row) {
      x.copy_row(row);
      dy.copy_row(row);
    });
    // Piece by piece, so that a thread finds its piece in L2 again.
    const auto gather_from = [&](const ColumnPieces& pieces, int first, int last) {
      team.for_dynamic_nowait(pieces.count() * chunks, 4, [&](std::int64_t unit) {
        const std::int64_t piece = unit / chunks;
        const std::int64_t begin = unit % chunks * kNeurons;
        const Weight from(call.plan.tier, in.x.dtype, pieces[piece]);  // gathered like a weight
        for (std::int64_t n = begin; n < std::min(begin + kNeurons, neurons); ++n) {
          const std::int64_t entry = call.by_neuron.offsets[n];
          const std::int64_t count = call.by_neuron.count(n);
          if (count == 0) continue;
          for (int g = first; g < last; ++g) {
            const WeightGradient& gradient = gradients.all[g];
            from.combine({call.by_neuron.rows + entry, call.entries[gradient.kind] + entry, count},
                         false, sum);
            store(call.kernels, gradient.out, n, piece * width, from.cols, sum,
                  call.out.accumulate);
          }
        }
      });
    };
    gather_from(x, 0, gradients.count - 1);
    gather_from(dy, gradients.count - 1, gradients.count);
    if (!call.out.accumulate) {
      team.for_static_nowait(neurons, [&](std::int64_t n) {
        if (call.by_neuron.count(n) > 0 || call.hot.contains(static_cast<std::int32_t>(n))) return;
        for (int g = 0; g < gradients.count; ++g) clear(gradients.all[g].out, n);
      });
    }
  });
}

}  // namespace twell
