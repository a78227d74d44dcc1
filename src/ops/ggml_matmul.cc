#include <algorithm>
#include <cstring>

#include "core/team.h"
#include "kernels/kernel.h"
#include "ops/scratch.h"
#include "ops/validate.h"
#include "twell/ggml.h"

namespace twell {
namespace {

constexpr const char* kName = "ggml_matmul";

// Rows of inputs in scratch memory: q, u, and the lists of those that are not zero.
class RoundedRows {
 public:
  RoundedRows(Context& context, const GgmlLayout& layout, std::int64_t rows)
      : layout_(layout),
        groups_(layout.inputs / layout.traits.group),
        stride_((bytes_of_row() + 63) / 64 * 64),
        memory_(static_cast<std::byte*>(
            context.scratch(0, kGgmlInputs, static_cast<std::size_t>(rows * stride_)))) {}

  void round(const GgmlKernels& kernels, const float* x, std::int64_t row) const {
    const Places to = places(row);
    kernels.round(x, layout_.inputs, layout_.traits.numbers, to.codes, to.units);
    if (layout_.order == GgmlOrder::outputs) return;
    std::int32_t count = 0;
    for (std::int64_t g = 0; g < groups_; ++g) {
      to.starts[g] = count;
      const std::int64_t first = g * layout_.traits.group;
      for (std::int64_t i = first; i < first + layout_.traits.group; i += 8) {
        std::uint64_t eight;
        std::memcpy(&eight, to.codes + i, sizeof eight);
        if (eight == 0) continue;
        for (std::int64_t j = i; j < i + 8; ++j) {
          to.fired[count] = static_cast<std::int32_t>(j);
          count += to.codes[j] != 0 ? 1 : 0;
        }
      }
    }
    to.starts[groups_] = count;
  }
  std::int64_t count(std::int64_t row) const { return places(row).starts[groups_]; }
  GgmlInputs row(std::int64_t row) const {
    const Places from = places(row);
    return {from.codes, from.units, from.fired, from.starts};
  }

 private:
  // Where a row has what.
  struct Places {
    float* units;
    std::int32_t* starts;
    std::int32_t* fired;
    std::int8_t* codes;
  };
  Places places(std::int64_t row) const {
    auto* const units = reinterpret_cast<float*>(memory_ + row * stride_);
    auto* const starts = reinterpret_cast<std::int32_t*>(units + layout_.blocks());
    std::int32_t* const fired = starts + groups_ + 1;
    return {units, starts, fired, reinterpret_cast<std::int8_t*>(fired + layout_.inputs)};
  }
  std::int64_t bytes_of_row() const {
    return 4 * (layout_.blocks() + groups_ + 1) + 5 * layout_.inputs;
  }

  GgmlLayout layout_;
  std::int64_t groups_, stride_;
  std::byte* memory_;
};

// Where outputs go: chunks of one row, or one chunk of a row.
void put(const float* from, std::int64_t chunk, std::int64_t count, std::int64_t row,
         MatrixView y) {
  const std::int64_t width = std::min(count * kChunk, y.cols - chunk * kChunk);
  std::memcpy(y.row<float>(row) + chunk * kChunk, from,
              static_cast<std::size_t>(width) * sizeof(float));
}

}  // namespace

void ggml_matmul(Context& context, ConstMatrixView x, const GgmlMatrix& w, MatrixView y) {
  // Sums of 64 rows stay in L2, with the codes of a span: 384 KB and 24.
  constexpr std::int64_t kMostChunks = 48;
  require_matrix(kName, "x", x, DType::f32, x.rows, w.inputs());
  require_matrix(kName, "y", y, DType::f32, x.rows, w.outputs());
  require_apart(kName, "y", y, "x", x);

  const GgmlLayout layout(w.format(), w.order(), w.outputs(), w.inputs());
  const GgmlKernels& kernels = ggml_kernels_of(context.tier());
  const GgmlKernels::Product& multiply = kernels.product[static_cast<std::size_t>(w.format())];
  const auto* const memory = static_cast<const std::uint8_t*>(w.data());
  const bool dense = w.order() == GgmlOrder::outputs;
  // A piece of the outputs for each thread, or as many for each.
  const std::int64_t chunks = layout.chunks(), threads = context.threads();
  const std::int64_t turns = (chunks + threads * kMostChunks - 1) / (threads * kMostChunks);
  const std::int64_t piece = (chunks + threads * turns - 1) / (threads * turns);
  for (std::int64_t begin = 0; begin < x.rows; begin += kGgmlRows) {
    const std::int64_t rows = std::min(kGgmlRows, x.rows - begin);
    const RoundedRows rounded(context, layout, rows);
    const auto bytes = static_cast<std::size_t>(rows * piece * kChunk) * sizeof(float);
    for (int t = 0; t < context.threads(); ++t) context.scratch(t, kGgmlSums, bytes);
    parallel(context, [&](Team& team) {
      auto* const sums = static_cast<float*>(context.scratch(team.thread(), kGgmlSums, bytes));
      team.for_static(rows,
                      [&](std::int64_t r) { rounded.round(kernels, x.row<float>(begin + r), r); });
      GgmlInputs inputs[kGgmlRows];
      std::int64_t fired = 0;
      for (std::int64_t r = 0; r < rows; ++r) {
        inputs[r] = rounded.row(r);
        if (!dense) fired += rounded.count(r);
      }
      // To unpack all codes takes as long as to multiply them for one row as they are.
      const bool alone = !dense && (rows == 1 || fired < layout.inputs);
      const double share = static_cast<double>(fired) / static_cast<double>(rows * layout.inputs);
      GgmlKernels::Rows* const together =
          dense || share > multiply.most_sparse ? multiply.dense_rows : multiply.sparse_rows;
      team.for_dynamic_nowait((chunks + piece - 1) / piece, 1, [&](std::int64_t p) {
        const std::int64_t first = p * piece, last = std::min(first + piece, chunks);
        if (alone) {
          for (std::int64_t r = 0; r < rows; ++r) {
            multiply.sparse_row(layout, memory, inputs[r], first, last, sums);
            put(sums, first, last - first, begin + r, y);
          }
          return;
        }
        std::fill_n(sums, rows * (last - first) * kChunk, 0.0F);
        for (std::int64_t at = 0; at < layout.inputs; at += GgmlLayout::kSpan) {
          together(layout, memory, inputs, rows, at, first, last, sums);
        }
        const float* from = sums;
        for (std::int64_t c = first; c < last; ++c) {
          for (std::int64_t r = 0; r < rows; ++r, from += kChunk) put(from, c, 1, begin + r, y);
        }
      });
    });
  }
}

}  // namespace twell
