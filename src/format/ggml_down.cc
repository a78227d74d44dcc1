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

constexpr const char* kName = "GgmlDown";

// Codes of a chunk's outputs, of one input: to their places, or from there. Four outputs that are
// neighbours have places that are, too.
void put_codes(const GgmlTraits& traits, const std::uint8_t* codes, std::uint8_t* to) {
  if (traits.bits == 8) {
    std::copy_n(codes, kChunk, to);
    return;
  }
  std::uint8_t placed[kChunk];
  for (std::int64_t d = 0; d < kChunk; d += 4) {
    std::memcpy(placed + place_of(traits.bits, d), codes + d, 4);
  }
  for (std::int64_t i = 0; i < 16; ++i) {
    to[i] = static_cast<std::uint8_t>((placed[i] & 15U) | placed[16 + i] << 4U);
  }
  if (traits.bits == 5) {
    for (std::int64_t i = 0; i < 4; ++i) {
      unsigned byte = 0;
      for (std::int64_t k = 0; k < 8; ++k) byte |= (placed[8 * i + k] >> 4U & 1U) << k;
      to[16 + i] = static_cast<std::uint8_t>(byte);
    }
  }
  if (traits.bits == 6) {
    for (std::int64_t i = 0; i < 8; ++i) {
      unsigned byte = 0;
      for (std::int64_t k = 0; k < 4; ++k) byte |= (placed[8 * k + i] >> 4U & 3U) << 2 * k;
      to[16 + i] = static_cast<std::uint8_t>(byte);
    }
  }
}
void take_codes(const GgmlTraits& traits, const std::uint8_t* from, std::uint8_t* codes) {
  if (traits.bits == 8) {
    std::copy_n(from, kChunk, codes);
    return;
  }
  std::uint8_t placed[kChunk];
  for (std::int64_t i = 0; i < 16; ++i) {
    placed[i] = from[i] & 15U;
    placed[16 + i] = static_cast<std::uint8_t>(from[i] >> 4U);
  }
  for (std::int64_t i = 0; traits.bits == 5 && i < kChunk; ++i) {
    placed[i] = static_cast<std::uint8_t>(placed[i] | (from[16 + i / 8] >> (i % 8) & 1U) << 4U);
  }
  for (std::int64_t i = 0; traits.bits == 6 && i < kChunk; ++i) {
    placed[i] = static_cast<std::uint8_t>(placed[i] | (from[16 + i % 8] >> (i / 8 * 2) & 3U) << 4U);
  }
  for (std::int64_t d = 0; d < kChunk; d += 4) {
    std::memcpy(codes + d, placed + place_of(traits.bits, d), 4);
  }
}

// The blocks of a chunk's outputs at one place along H.
using ChunkBlocks = std::array<GgmlBlock, kChunk>;

void put_chunk(const GgmlLayout& layout, const ChunkBlocks& blocks, std::int64_t b, std::int64_t c,
               std::uint8_t* memory) {
  const GgmlTraits& traits = layout.traits;
  std::uint8_t codes[kChunk];
  for (std::int64_t i = 0; i < traits.numbers; ++i) {
    for (std::int64_t d = 0; d < kChunk; ++d) codes[d] = blocks[d].codes[i];
    put_codes(traits, codes, memory + layout.code_at(b * traits.numbers + i, c));
  }
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

void take_chunk(const GgmlLayout& layout, const std::uint8_t* memory, std::int64_t b,
                std::int64_t c, ChunkBlocks& blocks) {
  const GgmlTraits& traits = layout.traits;
  std::uint8_t codes[kChunk];
  for (std::int64_t i = 0; i < traits.numbers; ++i) {
    take_codes(traits, memory + layout.code_at(b * traits.numbers + i, c), codes);
    for (std::int64_t d = 0; d < kChunk; ++d) blocks[d].codes[i] = codes[d];
  }
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

GgmlDown::GgmlDown(const GgmlView& down, const Context* context)
    : format_(down.format), outputs_(down.rows), inputs_(down.cols) {
  const GgmlTraits traits = traits_of(format_);
  require(down.rows >= 1 && down.cols >= 1 && down.cols % traits.numbers == 0, kName, "down",
          "expected at least one row of whole blocks of ", traits.numbers, " numbers, as ",
          traits.name, " has them, got [", down.rows, ", ", down.cols, "]");
  require(down.cols <= std::numeric_limits<std::int32_t>::max(), kName, "down",
          "expected fewer than 2^31 columns, got ", down.cols);
  require(down.blocks != nullptr, kName, "down", "blocks are null");
  const GgmlLayout layout(format_, outputs_, inputs_);
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
                   static_cast<const std::byte*>(down.blocks) + (first + d) * down.row_bytes() +
                       b * traits.bytes,
                   &block);
        if (bad[c] < 0 && !(is_finite(block.scale) && is_finite(block.minimum))) bad[c] = first + d;
      }
      put_chunk(layout, blocks, b, c, memory);
    }
  });
  const auto found =
      std::find_if(bad.begin(), bad.end(), [](std::int64_t row) { return row >= 0; });
  require(found == bad.end(), kName, "down", "a scale or minimum of row ",
          found == bad.end() ? 0 : *found, " is not finite");
}

void GgmlDown::unpack(void* blocks, const Context* context) const {
  const GgmlLayout layout(format_, outputs_, inputs_);
  const GgmlView view{format_, blocks, outputs_, inputs_};
  const auto* const memory = static_cast<const std::uint8_t*>(memory_.data());
  parallel_for(context, layout.chunks(), [&](std::int64_t c) {
    ChunkBlocks taken = {};
    const std::int64_t first = c * kChunk, rows = std::min(kChunk, outputs_ - first);
    for (std::int64_t b = 0; b < layout.blocks(); ++b) {
      take_chunk(layout, memory, b, c, taken);
      for (std::int64_t d = 0; d < rows; ++d) {
        put_block(format_, taken[d],
                  static_cast<std::byte*>(blocks) + (first + d) * view.row_bytes() +
                      b * layout.traits.bytes);
      }
    }
  });
}

}  // namespace twell
