#include "twell/transpose.h"

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "core/team.h"

namespace twell {
namespace {

template <class Word>
void transpose_words(const Context* context, const WeightView& in, Word* out,
                     std::int64_t row_stride) {
  // 32 × 32 words: 32 cache lines of input and of output, half of a first-level cache at most.
  constexpr std::int64_t kBlock = 32;
  const std::int64_t strips = (in.cols + kBlock - 1) / kBlock;
  parallel_for(context, strips, [&](std::int64_t strip) {
    const std::int64_t c0 = strip * kBlock;
    const std::int64_t c1 = std::min(c0 + kBlock, in.cols);
    for (std::int64_t r0 = 0; r0 < in.rows; r0 += kBlock) {
      const std::int64_t r1 = std::min(r0 + kBlock, in.rows);
      for (std::int64_t c = c0; c < c1; ++c) {
        Word* const to = out + c * row_stride;
        for (std::int64_t r = r0; r < r1; ++r) to[r] = in.row<Word>(r)[c];
      }
    }
  });
}

}  // namespace

WeightView transpose(const WeightView& in, void* out, std::int64_t row_stride,
                     const Context* context) {
  constexpr const char* kOperation = "transpose";
  require(in.layout == WeightLayout::rows, kOperation, "in",
          "expected a weight as stored, got a packed one");
  require(!in_blocks(in.type), kOperation, "in", "expected another type than ", name_of(in.type));
  const std::int64_t bytes = element_bytes(in.type);
  require_rows(kOperation, "in", in, static_cast<std::size_t>(bytes));
  WeightView view = in;
  view.data = out;
  std::swap(view.rows, view.cols);
  view.row_stride = row_stride;
  view.scaled_by = in.scaled_by == ScaledBy::row ? ScaledBy::column : ScaledBy::row;
  require_rows(kOperation, "out", view, static_cast<std::size_t>(bytes));
  if (bytes == 4) {
    transpose_words(context, in, static_cast<std::uint32_t*>(out), row_stride);
  } else if (bytes == 2) {
    transpose_words(context, in, static_cast<std::uint16_t*>(out), row_stride);
  } else {
    transpose_words(context, in, static_cast<std::uint8_t*>(out), row_stride);
  }
  return view;
}

}  // namespace twell
