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

bool GemmInput::in_place() const {
  return x.dtype == form.dtype && depth() == x.cols && form.accepts(x.row_stride, x.rows);
}

std::size_t GemmInput::prepared_bytes() const {
  return static_cast<std::size_t>(x.rows * stride()) * size_of(form.dtype);
}

void GemmInput::prepare(std::int64_t begin, std::int64_t end, void* prepared) const {
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
  return args;
}

}  // namespace twell
