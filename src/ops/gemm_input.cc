#include "ops/gemm_input.h"

#include <algorithm>

namespace twell {
namespace {

template <class From, class To>
void convert_rows(ConstMatrixView x, std::int64_t begin, std::int64_t end, std::int64_t depth,
                  std::int64_t stride, To* prepared) {
  for (std::int64_t r = begin; r < end; ++r) {
    const From* from = x.row<From>(r);
    To* to = prepared + r * stride;
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

bool GemmInput::in_place() const {
  return x.dtype == form.dtype && depth() == x.cols && form.accepts(x.row_stride, x.rows);
}

std::size_t GemmInput::prepared_bytes() const {
  return in_place() ? 0 : static_cast<std::size_t>(x.rows * stride()) * size_of(form.dtype);
}

void GemmInput::prepare(std::int64_t begin, std::int64_t end, void* prepared) const {
  if (in_place()) return;
  if (x.dtype == DType::f32) {
    convert_rows<float>(x, begin, end, depth(), stride(), static_cast<float*>(prepared));
  } else if (form.dtype == DType::f32) {
    convert_rows<bf16>(x, begin, end, depth(), stride(), static_cast<float*>(prepared));
  } else {
    convert_rows<bf16>(x, begin, end, depth(), stride(), static_cast<bf16*>(prepared));
  }
}

GemmArgs GemmInput::args(const void* prepared, std::int64_t begin, std::int64_t end) const {
  GemmArgs args;
  args.x_stride = in_place() ? x.row_stride : stride();
  args.x = static_cast<const std::byte*>(in_place() ? x.data : prepared) +
           static_cast<std::size_t>(begin * args.x_stride) * size_of(form.dtype);
  args.rows = end - begin;
  args.weight = weight;
  return args;
}

}  // namespace twell
