#include "twell/transpose.h"

#include <algorithm>

#include "core/check.h"

namespace twell {
namespace {

template <class Word>
void transpose_words(ConstMatrixView in, MatrixView out) {
  // 32 × 32 words: 32 cache lines of input and of output, half of a first-level cache at most.
  constexpr std::int64_t kBlock = 32;
  const std::int64_t strips = (in.cols + kBlock - 1) / kBlock;
#pragma omp parallel for schedule(static)
  for (std::int64_t strip = 0; strip < strips; ++strip) {
    const std::int64_t c0 = strip * kBlock;
    const std::int64_t c1 = std::min(c0 + kBlock, in.cols);
    for (std::int64_t r0 = 0; r0 < in.rows; r0 += kBlock) {
      const std::int64_t r1 = std::min(r0 + kBlock, in.rows);
      for (std::int64_t c = c0; c < c1; ++c) {
        Word* const to = out.row<Word>(c);
        for (std::int64_t r = r0; r < r1; ++r) to[r] = in.row<Word>(r)[c];
      }
    }
  }
}

}  // namespace

void transpose(ConstMatrixView in, MatrixView out) {
  require_view("transpose", "in", in);
  require_view("transpose", "out", out);
  require(out.dtype == in.dtype && out.rows == in.cols && out.cols == in.rows, "transpose", "out",
          "expected ", name_of(in.dtype), " [", in.cols, ", ", in.rows, "], got ",
          name_of(out.dtype), " [", out.rows, ", ", out.cols, "]");
  if (in.dtype == DType::f32) {
    transpose_words<std::uint32_t>(in, out);
  } else {
    transpose_words<std::uint16_t>(in, out);
  }
}

}  // namespace twell
