// The weight gradients, neuron by neuron: sums over the rows that fired it, rows ascending.
//
// A neuron that few rows fired gathers their x and dy. Both are copied piece by piece before, [D /
// width][M][width]: a piece of all rows then stays in L2, while rows as they lie, 4 KB apart, fall
// into the same cache sets.
#include <omp.h>

#include <algorithm>

#include "ops/backward.h"
#include "ops/plan.h"
#include "ops/scratch.h"
#include "twell/device.h"

namespace twell {
namespace {

// One weight gradient: dW row n = Σ over the rows that fired n of coefficient · (input row).
struct WeightGradient {
  int kind;
  ConstMatrixView input;  // x or dy, [M, cols]
  MatrixView out;         // [H, cols]
};

struct Gradients {
  WeightGradient all[kCoefficientKinds];
  int count = 0;
};

Gradients gradients_of(const BackwardCall& call) {
  Gradients out;
  out.all[out.count++] = {kDv, call.in.x, call.out.gate};
  if (call.out.up) out.all[out.count++] = {kDu, call.in.x, *call.out.up};
  out.all[out.count++] = {kH, call.in.dy, call.out.down};
  return out;
}

// `width` columns of a row of `out`, from f32.
void store(const Kernels& kernels, const MatrixView& out, std::int64_t row, std::int64_t column,
           std::int64_t width, const float* from, bool accumulate) {
  std::byte* to = out.row_bytes(row) + static_cast<std::size_t>(column) * size_of(out.dtype);
  if (out.dtype != DType::f32) {
    kernels.round_row(from, width, to);
    return;
  }
  auto* sums = reinterpret_cast<float*>(to);
  if (accumulate) {
    for (std::int64_t k = 0; k < width; ++k) sums[k] += from[k];
  } else {
    std::copy_n(from, width, sums);
  }
}

void clear(const MatrixView& out, std::int64_t row) {
  std::fill_n(out.row_bytes(row), static_cast<std::size_t>(out.cols) * size_of(out.dtype),
              std::byte{});
}

// A matrix cut into pieces of columns, each of them dense.
struct Pieces {
  ConstMatrixView matrix;
  std::int64_t width = 0;
  std::byte* data = nullptr;

  std::int64_t count() const { return (matrix.cols + width - 1) / width; }
  std::int64_t columns(std::int64_t piece) const {
    return std::min(width, matrix.cols - piece * width);
  }
  ConstMatrixView operator[](std::int64_t piece) const {
    const auto before = static_cast<std::size_t>(piece * width * matrix.rows);
    return {data + before * size_of(matrix.dtype), matrix.dtype, matrix.rows, columns(piece)};
  }
  void copy_row(std::int64_t row) const {
    for (std::int64_t p = 0; p < count(); ++p) {
      const ConstMatrixView piece = (*this)[p];
      const std::byte* from =
          matrix.row_bytes(row) + static_cast<std::size_t>(p * width) * size_of(matrix.dtype);
      std::copy_n(from, static_cast<std::size_t>(piece.cols) * size_of(matrix.dtype),
                  const_cast<std::byte*>(piece.row_bytes(row)));
    }
  }
};

// Columns of a piece: all rows of it in a third of L2.
std::int64_t piece_width(std::int64_t rows, DType dtype) {
  constexpr std::int64_t kNarrowest = 64, kWidest = 512;
  const auto bytes = static_cast<std::int64_t>(size_of(dtype)) * rows * 3;
  std::int64_t width = kWidest;
  while (width > kNarrowest && width * bytes > cpu_caches().l2) width /= 2;
  return width;
}

// Neurons that are not hot, by gathering.
void gather(Context& context, const BackwardCall& call) {
  constexpr std::int64_t kNeurons = 64;  // of a unit of work
  const Gradients gradients = gradients_of(call);
  const FfnBackward& in = call.in;
  const std::int64_t hidden = in.pattern.hidden;
  const std::int64_t width = piece_width(in.x.rows, in.x.dtype);
  const auto bytes = [](const ConstMatrixView& m) {
    return static_cast<std::size_t>(m.rows * m.cols) * size_of(m.dtype);
  };
  auto* data = static_cast<std::byte*>(context.scratch(0, kPieces, bytes(in.x) + bytes(in.dy)));
  const Pieces x = {in.x, width, data};
  const Pieces dy = {in.dy, width, data + bytes(in.x)};
  for (int t = 0; t < call.plan.threads; ++t) {
    context.scratch(t, kPartialY, static_cast<std::size_t>(width) * sizeof(float));
  }
  const std::int64_t chunks = (hidden + kNeurons - 1) / kNeurons;
#pragma omp parallel num_threads(call.plan.threads)
  {
    auto* sum = static_cast<float*>(context.scratch(omp_get_thread_num(), kPartialY, 0));
#pragma omp for schedule(static)
    for (std::int64_t row = 0; row < in.x.rows; ++row) {
      x.copy_row(row);
      dy.copy_row(row);
    }
    // Piece by piece, so that a thread finds its piece in L2 again.
    const auto gather_from = [&](const Pieces& pieces, int first, int last) {
#pragma omp for schedule(dynamic, 4) nowait
      for (std::int64_t unit = 0; unit < pieces.count() * chunks; ++unit) {
        const std::int64_t piece = unit / chunks;
        const std::int64_t begin = unit % chunks * kNeurons;
        const ConstMatrixView from = pieces[piece];
        for (std::int64_t n = begin; n < std::min(begin + kNeurons, hidden); ++n) {
          const std::int64_t entry = call.by_neuron.offsets[n];
          const std::int64_t count = call.by_neuron.count(n);
          if (count == 0) continue;
          for (int g = first; g < last; ++g) {
            const WeightGradient& gradient = gradients.all[g];
            call.kernels.weighted_rows(
                from, {call.by_neuron.rows + entry, call.entries[gradient.kind] + entry, count},
                false, sum);
            store(call.kernels, gradient.out, n, piece * width, from.cols, sum,
                  call.out.accumulate);
          }
        }
      }
    };
    gather_from(x, 0, gradients.count - 1);
    gather_from(dy, gradients.count - 1, gradients.count);
    if (!call.out.accumulate) {
#pragma omp for schedule(static)
      for (std::int64_t n = 0; n < hidden; ++n) {
        if (call.by_neuron.count(n) > 0 || call.hot.contains(static_cast<std::int32_t>(n)))
          continue;
        for (int g = 0; g < gradients.count; ++g) clear(gradients.all[g].out, n);
      }
    }
  }
}

// Hot neurons, by GEMMs over all rows.
void multiply(Context& context, const BackwardCall& call) {
  const Gradients gradients = gradients_of(call);
  const HotSet& hot = call.hot;
  const std::int64_t most = row_block(call.plan.tier, hot.size());
  for (int t = 0; t < call.plan.threads; ++t) {
    context.scratch(t, kAccumulators,
                    static_cast<std::size_t>(gemm_accumulators(most)) * sizeof(float));
    context.scratch(t, kHotPanels, chosen_panel_bytes(call.in.x.dtype, kColumnBlock));
  }
  const std::int64_t widest = std::max(call.in.x.cols, call.in.dy.cols);
  const std::int64_t columns = (widest + kColumnBlock - 1) / kColumnBlock;
  const std::int64_t blocks = (hot.size() + most - 1) / most;
#pragma omp parallel num_threads(call.plan.threads)
  {
    const int thread = omp_get_thread_num();
    auto* c = static_cast<float*>(context.scratch(thread, kAccumulators, 0));
    void* panels = context.scratch(thread, kHotPanels, 0);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t unit = 0; unit < blocks * columns * gradients.count; ++unit) {
      const WeightGradient& gradient = gradients.all[unit % gradients.count];
      const std::int64_t column = unit / gradients.count % columns * kColumnBlock;
      const std::int64_t first = unit / gradients.count / columns * most;
      const std::int64_t neurons = std::min(most, hot.size() - first);
      const std::int64_t width = std::min(kColumnBlock, gradient.input.cols - column);
      if (width <= 0) continue;
      SparseX x = call.columns[gradient.kind];
      x.data = x.at(first, 0);
      combine_chosen(call.kernels, x, neurons, {gradient.input, nullptr, call.in.x.rows}, column,
                     width, false, panels, c);
      for (std::int64_t i = 0; i < neurons; ++i) {
        store(call.kernels, gradient.out, hot.list()[first + i], column, width,
              c + i * kColumnBlock, call.out.accumulate);
      }
    }
  }
}

}  // namespace

void backward_neurons(Context& context, const BackwardCall& call) {
  gather(context, call);
  if (call.hot.size() > 0) multiply(context, call);
}

}  // namespace twell
