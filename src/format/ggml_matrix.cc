#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/check.h"
#include "core/team.h"
#include "format/ggml_layout.h"
#include "twell/half.h"

namespace twell {
namespace {

constexpr const char* kName = "GgmlMatrix";

// The lower four bits of `count` codes, two to a byte, and the upper ones apart, as the layout
// says. Codes of 8 bits are one to a byte.
void put_places(int bits, std::int64_t count, const std::uint8_t* places, std::uint8_t* lower,
                std::uint8_t* upper) {
  if (bits == 8) {
    std::copy_n(places, count, lower);
    return;
  }
  const std::int64_t half = count / 2, quarter = count / 4;
  for (std::int64_t i = 0; i < half; ++i) {
    lower[i] = static_cast<std::uint8_t>((places[i] & 15U) | places[half + i] << 4U);
  }
  for (std::int64_t i = 0; bits == 5 && i < count / 8; ++i) {
    unsigned byte = 0;
    for (std::int64_t k = 0; k < 8; ++k) byte |= (places[8 * i + k] >> 4U & 1U) << k;
    upper[i] = static_cast<std::uint8_t>(byte);
  }
  for (std::int64_t i = 0; bits == 6 && i < quarter; ++i) {
    unsigned byte = 0;
    for (std::int64_t k = 0; k < 4; ++k) byte |= (places[quarter * k + i] >> 4U & 3U) << 2 * k;
    upper[i] = static_cast<std::uint8_t>(byte);
  }
}
void take_places(int bits, std::int64_t count, const std::uint8_t* lower, const std::uint8_t* upper,
                 std::uint8_t* places) {
  if (bits == 8) {
    std::copy_n(lower, count, places);
    return;
  }
  const std::int64_t half = count / 2, quarter = count / 4;
  for (std::int64_t i = 0; i < count; ++i) {
    unsigned code = lower[i % half] >> (i / half * 4) & 15U;
    if (bits == 5) code |= (upper[i / 8] >> (i % 8) & 1U) << 4U;
    if (bits == 6) code |= (upper[i % quarter] >> (i / quarter * 2) & 3U) << 4U;
    places[i] = static_cast<std::uint8_t>(code);
  }
}

// The blocks of a chunk's outputs at one place along the inputs.
using ChunkBlocks = std::array<GgmlBlock, kChunk>;

// The inputs whose codes of a chunk lie together, and where each code is among those.
struct Together {
  std::int64_t inputs;
  std::array<std::uint8_t, 4 * kChunk> places;  // [outputs][inputs]

  explicit Together(const GgmlLayout& layout)
      : inputs(layout.order == GgmlOrder::inputs ? 1 : 4), places() {
    const int bits = layout.traits.bits;
    for (std::int64_t k = 0; k < codes(); ++k) {
      const bool as_it_is = inputs == 4 || bits == 8;
      places[k] = static_cast<std::uint8_t>(as_it_is ? k : place_of(bits, k));
    }
  }
  std::int64_t codes() const { return inputs * kChunk; }
};

// f(i, lower, upper) for the inputs from i on of a block whose codes lie together, and where in
// memory their lower and upper bits are.
template <class F>
void for_codes(const GgmlLayout& layout, std::int64_t b, std::int64_t c, const F& f) {
  const std::int64_t numbers = layout.traits.numbers, first = b * numbers;
  if (layout.order == GgmlOrder::inputs) {
    for (std::int64_t i = 0; i < numbers; ++i) {
      const std::int64_t at = layout.code_at(first + i, c);
      f(i, at, at + kChunk / 2);
    }
  } else {
    for (std::int64_t i = 0; i < numbers; i += 4) {
      const std::int64_t quad = (first + i) / 4;
      f(i, layout.quad_at(quad, c), layout.upper_at(quad, c));
    }
  }
}

void put_chunk(const GgmlLayout& layout, const Together& together, const ChunkBlocks& blocks,
               std::int64_t b, std::int64_t c, std::uint8_t* memory) {
  const GgmlTraits& traits = layout.traits;
  std::uint8_t codes[4 * kChunk];
  for_codes(layout, b, c, [&](std::int64_t i, std::int64_t lower, std::int64_t upper) {
    const std::uint8_t* place = together.places.data();
    for (std::int64_t d = 0; d < kChunk; ++d) {
      for (std::int64_t j = 0; j < together.inputs; ++j) codes[*place++] = blocks[d].codes[i + j];
    }
    put_places(traits.bits, together.codes(), codes, memory + lower, memory + upper);
  });
  const std::int64_t groups = traits.numbers / traits.group;
  for (std::int64_t g = 0; traits.sub_scales && g < groups; ++g) {
    std::uint8_t* const pair = memory + layout.pair_at((b * groups + g) / 2, c) + g % 2;
    for (std::int64_t d = 0; d < kChunk; ++d) {
      pair[2 * d] = static_cast<std::uint8_t>(blocks[d].scales[g]);
      if (traits.minima) pair[2 * (kChunk + d)] = blocks[d].minima[g];
    }
  }
  std::uint8_t* const scales = memory + layout.scale_at(b, c);
  for (std::int64_t d = 0; d < kChunk; ++d) {
    std::memcpy(scales + 2 * d, &blocks[d].scale, 2);
    if (traits.minima) std::memcpy(scales + 2 * (kChunk + d), &blocks[d].minimum, 2);
  }
}

void take_chunk(const GgmlLayout& layout, const Together& together, const std::uint8_t* memory,
                std::int64_t b, std::int64_t c, ChunkBlocks& blocks) {
  const GgmlTraits& traits = layout.traits;
  std::uint8_t codes[4 * kChunk];
  for_codes(layout, b, c, [&](std::int64_t i, std::int64_t lower, std::int64_t upper) {
    take_places(traits.bits, together.codes(), memory + lower, memory + upper, codes);
    const std::uint8_t* place = together.places.data();
    for (std::int64_t d = 0; d < kChunk; ++d) {
      for (std::int64_t j = 0; j < together.inputs; ++j) blocks[d].codes[i + j] = codes[*place++];
    }
  });
  const std::int64_t groups = traits.numbers / traits.group;
  for (std::int64_t g = 0; traits.sub_scales && g < groups; ++g) {
    const std::uint8_t* const pair = memory + layout.pair_at((b * groups + g) / 2, c) + g % 2;
    for (std::int64_t d = 0; d < kChunk; ++d) {
      blocks[d].scales[g] = static_cast<std::int8_t>(pair[2 * d]);
      if (traits.minima) blocks[d].minima[g] = pair[2 * (kChunk + d)];
    }
  }
  const std::uint8_t* const scales = memory + layout.scale_at(b, c);
  for (std::int64_t d = 0; d < kChunk; ++d) {
    std::memcpy(&blocks[d].scale, scales + 2 * d, 2);
    if (traits.minima) std::memcpy(&blocks[d].minimum, scales + 2 * (kChunk + d), 2);
  }
}

bool is_finite(std::uint16_t half) { return std::isfinite(float_of_half(half)); }

}  // namespace

GgmlMatrix::GgmlMatrix(const GgmlView& weight, GgmlOrder order, const Context* context)
    : format_(weight.format), order_(order), outputs_(weight.rows), inputs_(weight.cols) {
  const GgmlTraits traits = traits_of(format_);
  require(weight.rows >= 1 && weight.cols >= 1 && weight.cols % traits.numbers == 0, kName,
          "weight", "expected at least one row of whole blocks of ", traits.numbers,
          " numbers, as ", traits.name, " has them, got [", weight.rows, ", ", weight.cols, "]");
  require(weight.cols <= std::numeric_limits<std::int32_t>::max(), kName, "weight",
          "expected fewer than 2^31 columns, got ", weight.cols);
  require(weight.blocks != nullptr, kName, "weight", "blocks are null");
  const GgmlLayout layout(format_, order_, outputs_, inputs_);
  const Together together(layout);
  memory_ = PreparedMemory(static_cast<std::size_t>(layout.bytes()));
  auto* const memory = static_cast<std::uint8_t*>(memory_.mutable_data());
  std::vector<std::int64_t> bad(static_cast<std::size_t>(layout.chunks()), -1);  // rows
  parallel_for(context, layout.chunks(), [&](std::int64_t c) {
    ChunkBlocks blocks = {};
    const std::int64_t first = c * kChunk, rows = std::min(kChunk, outputs_ - first);
    for (std::int64_t b = 0; b < layout.blocks(); ++b) {
      for (std::int64_t d = 0; d < rows; ++d) {
        GgmlBlock& block = blocks[d];
        take_block(format_,
                   static_cast<const std::byte*>(weight.blocks) + (first + d) * weight.row_bytes() +
                       b * traits.bytes,
                   &block);
        if (bad[c] < 0 && !(is_finite(block.scale) && is_finite(block.minimum))) bad[c] = first + d;
      }
      put_chunk(layout, together, blocks, b, c, memory);
    }
  });
  const auto found =
      std::find_if(bad.begin(), bad.end(), [](std::int64_t row) { return row >= 0; });
  require(found == bad.end(), kName, "weight", "a scale or minimum of row ",
          found == bad.end() ? 0 : *found, " is not finite");
}

void GgmlMatrix::unpack(void* blocks, const Context* context) const {
  const GgmlLayout layout(format_, order_, outputs_, inputs_);
  const Together together(layout);
  const GgmlView view{format_, blocks, outputs_, inputs_};
  const auto* const memory = static_cast<const std::uint8_t*>(memory_.data());
  parallel_for(context, layout.chunks(), [&](std::int64_t c) {
    ChunkBlocks taken = {};
    const std::int64_t first = c * kChunk, rows = std::min(kChunk, outputs_ - first);
    for (std::int64_t b = 0; b < layout.blocks(); ++b) {
      take_chunk(layout, together, memory, b, c, taken);
      for (std::int64_t d = 0; d < rows; ++d) {
        put_block(format_, taken[d],
                  static_cast<std::byte*>(blocks) + (first + d) * view.row_bytes() +
                      b * layout.traits.bytes);
      }
    }
  });
}

}  // namespace twell
