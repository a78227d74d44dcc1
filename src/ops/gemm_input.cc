#include "ops/gemm_input.h"

#include <algorithm>

namespace twell {
namespace {

template <class From, class To>
void convert_rows(ConstMatrixView x, std::int64_t begin, std::int64_t end, std::int64_t depth,
                  To* prepared) {
  for (std::int64_t r = begin; r < end; ++r) {
    const From* from = x.row<From>(r);
    To* to = prepared + r * depth;
    for (std::int64_t k = 0; k < x.cols; ++k) to[k] = static_cast<To>(from[k]);
    std::fill(to + x.cols, to + depth, To{});
  }
}

}  // namespace

std::int64_t row_block(std::int64_t rows) {
  constexpr std::int64_t kRowBytes = kColumnBlock * 4 + 512;
  constexpr std::int64_t kMultiple = 32;  // of the AMX kernel's steps
  static const std::int64_t most =
      std::clamp<std::int64_t>(cpu_caches().l2 * 3 / 4 / kRowBytes, 128, 1024) / kMultiple *
      kMultiple;
  if (rows <= most) return std::max<std::int64_t>(rows, 1);
  const std::int64_t blocks = (rows + most - 1) / most;
  return ((rows + blocks - 1) / blocks + kMultiple - 1) / kMultiple * kMultiple;
}

std::size_t GemmInput::prepared_bytes() const {
  if (x.dtype == x_dtype && depth() == x.cols) return 0;
  return static_cast<std::size_t>(x.rows * depth()) * size_of(x_dtype);
}

void GemmInput::prepare(std::int64_t begin, std::int64_t end, void* prepared) const {
  if (prepared_bytes() == 0) return;
  if (x.dtype == DType::f32) {
    convert_rows<float>(x, begin, end, depth(), static_cast<float*>(prepared));
  } else if (x_dtype == DType::f32) {
    convert_rows<bf16>(x, begin, end, depth(), static_cast<float*>(prepared));
  } else {
    convert_rows<bf16>(x, begin, end, depth(), static_cast<bf16*>(prepared));
  }
}

GemmArgs GemmInput::args(const void* prepared, std::int64_t begin, std::int64_t end) const {
  const bool in_place = prepared_bytes() == 0;
  GemmArgs args;
  args.x_stride = in_place ? x.row_stride : depth();
  args.x = static_cast<const std::byte*>(in_place ? x.data : prepared) +
           static_cast<std::size_t>(begin * args.x_stride) * size_of(x_dtype);
  args.rows = end - begin;
  args.weight = weight;
  return args;
}

}  // namespace twell
