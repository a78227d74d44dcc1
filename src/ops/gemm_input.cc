#include "ops/gemm_input.h"

#include <algorithm>

namespace twell {
namespace {

// Rows of x, zeros up to `depth`, in pieces of so many inputs, which go to at(row, first input).
template <class From, class To, class At>
void convert_rows(ConstMatrixView x, std::int64_t begin, std::int64_t end, std::int64_t depth,
                  std::int64_t piece, At at) {
  for (std::int64_t r = begin; r < end; ++r) {
    const From* from = x.row<From>(r);
    for (std::int64_t first = 0; first < depth; first += piece) {
      auto* out = reinterpret_cast<To*>(at(r, first));
      const std::int64_t count = std::min(piece, depth - first);
      const std::int64_t there = std::clamp(x.cols - first, std::int64_t{0}, count);
      for (std::int64_t k = 0; k < there; ++k) out[k] = static_cast<To>(from[first + k]);
      std::fill(out + there, out + count, To{});
    }
  }
}

}  // namespace

bool GemmInput::in_place() const {
  return !in_tiles() && x.dtype == layout.dtype && depth() == x.cols;
}

std::size_t GemmInput::prepared_bytes() const {
  return static_cast<std::size_t>(in_tiles() ? TileOrder::blocks(depth()) *
                                                   TileOrder::block(x.rows, element())
                                             : x.rows * depth() * element());
}

void GemmInput::prepare(std::int64_t begin, std::int64_t end, void* prepared) const {
  auto* base = static_cast<std::byte*>(prepared);
  const auto at = [&](std::int64_t row, std::int64_t input) {
    if (!in_tiles()) return base + (row * depth() + input) * element();
    return base + input / TileOrder::kInputs * TileOrder::block(x.rows, element()) +
           TileOrder::row(row, element()) +
           input % TileOrder::kInputs * element() * TileOrder::kRows;
  };
  const std::int64_t piece = in_tiles() ? TileOrder::kPiece / element() : depth();
  if (x.dtype == DType::f32) {
    convert_rows<float, float>(x, begin, end, depth(), piece, at);
  } else if (layout.dtype == DType::f32) {
    convert_rows<bf16, float>(x, begin, end, depth(), piece, at);
  } else {
    convert_rows<bf16, bf16>(x, begin, end, depth(), piece, at);
  }
}

GemmArgs GemmInput::args(const void* prepared, std::int64_t begin, std::int64_t end) const {
  GemmArgs args;
  args.rows = end - begin;
  const auto* base = static_cast<const std::byte*>(in_place() ? x.data : prepared);
  if (in_tiles()) {
    args.x = base + TileOrder::row(begin, element());
    args.x_block = TileOrder::block(x.rows, element());
    return args;
  }
  args.x_stride = in_place() ? x.row_stride : depth();
  args.x = base + begin * args.x_stride * element();
  return args;
}

}  // namespace twell
