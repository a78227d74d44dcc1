#include "ops/gemm_input.h"

#include <algorithm>
#include <cstring>

namespace twell {
namespace {

// Rows of x one after the other, zeros up to `depth`.
template <class From, class To>
void convert_rows(ConstMatrixView x, std::int64_t begin, std::int64_t end, std::int64_t depth,
                  void* prepared) {
  for (std::int64_t r = begin; r < end; ++r) {
    const From* from = x.row<From>(r);
    To* const out = static_cast<To*>(prepared) + r * depth;
    for (std::int64_t k = 0; k < x.cols; ++k) out[k] = static_cast<To>(from[k]);
    std::fill(out + x.cols, out + depth, To{});
  }
}

// Rows of x in TileOrder, zeros up to `depth`. Pieces of a constant size are four moves; a loop
// over a size that only a call knows took a third of a dense layer of D = 256.
void to_tiles(ConstMatrixView x, std::int64_t begin, std::int64_t end, std::int64_t depth,
              std::byte* prepared) {
  const auto element = static_cast<std::int64_t>(size_of(x.dtype));
  constexpr std::int64_t kPiece = TileOrder::kPiece;
  const std::int64_t block = TileOrder::kInputs * element;  // bytes of a row
  for (std::int64_t r = begin; r < end; ++r) {
    const std::byte* from = x.row_bytes(r);
    std::int64_t left = x.cols * element;
    for (std::int64_t first = 0; first < depth * element; first += block) {
      std::byte* out =
          prepared + first / block * TileOrder::block(x.rows, element) + TileOrder::row(r, element);
      const std::int64_t bytes = std::min(block, depth * element - first);
      for (std::int64_t at = 0; at < bytes; at += kPiece, out += TileOrder::kTile) {
        if (left >= kPiece) {
          std::memcpy(out, from, kPiece);
        } else {
          const std::int64_t there = std::max(left, std::int64_t{0});
          std::copy_n(from, there, out);
          std::fill(out + there, out + std::min(kPiece, bytes - at), std::byte{});
        }
        from += kPiece;
        left -= kPiece;
      }
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
  if (in_tiles()) {
    to_tiles(x, begin, end, depth(), static_cast<std::byte*>(prepared));
  } else if (x.dtype == DType::f32) {
    convert_rows<float, float>(x, begin, end, depth(), prepared);
  } else if (layout.dtype == DType::f32) {
    convert_rows<bf16, float>(x, begin, end, depth(), prepared);
  } else {
    convert_rows<bf16, bf16>(x, begin, end, depth(), prepared);
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
