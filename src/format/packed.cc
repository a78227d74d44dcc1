#include "twell/packed.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "core/team.h"
#include "format/prepared.h"
#include "twell/coded_matrix.h"
#include "twell/int4.h"

namespace twell {
namespace {

// A panel is [depth][16 neurons] of words: one f32, a pair of bf16, or four codes.
using Word = std::uint32_t;
constexpr std::int64_t kWord = sizeof(Word);

// Words that are copied of one neuron before the next one's: 4 KB of a panel, which stay in L1
// until all neurons are there. A whole panel is more than L1, and took 15 times as long. A block of
// codes is as many.
constexpr std::int64_t kRun = 64;
static_assert(kRun * kWord == kCodeBlock);

// Panel by panel on all threads: begin(panel, its bytes, neurons), then run(row, place in the
// panel, words) for runs of words, those of all neurons in turns; part(row, place, bytes) for what
// is less than a word at the end of a row. `Panel`: std::byte or const std::byte.
template <class View, class Panel, class Begin, class Run, class Part>
void for_each_run(const Context* context, View w, WeightType type, Panel* packed, Begin begin,
                  Run run, Part part) {
  const std::int64_t row_bytes = bytes_of(type, w.cols);
  const std::int64_t words = row_bytes / kWord;
  const std::int64_t bytes = panel_bytes(type, w.cols);
  const std::int64_t panels = packed_panels(w.rows);
  parallel_for(context, panels, [&](std::int64_t p) {
    Panel* const panel = packed + p * bytes;
    const std::int64_t neurons = std::min(kPanel, w.rows - p * kPanel);
    begin(panel, bytes, neurons);
    const auto place = [&](std::int64_t word, std::int64_t n) {
      const std::int64_t heads = (word / kRun + 1) * traits_of(type).head;
      return panel + (word * kWord + heads) * kPanel + n * kWord;
    };
    for (std::int64_t first = 0; first < words; first += kRun) {
      for (std::int64_t n = 0; n < neurons; ++n) {
        run(w.row_bytes(p * kPanel + n) + first * kWord, place(first, n),
            std::min(kRun, words - first));
      }
    }
    for (std::int64_t n = 0; words * kWord < row_bytes && n < neurons; ++n) {
      part(w.row_bytes(p * kPanel + n) + words * kWord, place(words, n),
           static_cast<std::size_t>(row_bytes - words * kWord));
    }
  });
}

// Rows may start anywhere, so words are copied as bytes.
void copy_run(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step,
              std::int64_t words) {
  for (; words > 0; --words, from += from_step, to += to_step) std::memcpy(to, from, sizeof(Word));
}

// What a block of codes starts with, of every block of a panel of codes or zeros.
void fill_heads(std::int64_t cols, std::int8_t* panel) {
  const std::int64_t depth = code_depth(cols);
  for (std::int64_t first = 0; first < depth; first += kCodeBlock) {
    std::int32_t sums[kPanel] = {};
    const std::int8_t* codes = panel + kPanel * kCodeHead;
    for (std::int64_t k = std::min(kCodeBlock, depth - first); k > 0; k -= kWord) {
      for (std::int32_t& sum : sums) {
        for (std::int64_t i = 0; i < kWord; ++i) sum -= *codes++;
      }
    }
    std::memcpy(panel, sums, sizeof sums);
    panel += kPanel * (kCodeHead + kCodeBlock);
  }
}

void fill_all_heads(const Context* context, const WeightView& w, std::byte* packed) {
  auto* panels = reinterpret_cast<std::int8_t*>(packed);
  const std::int64_t count = packed_panels(w.rows), bytes = code_panel_bytes(w.cols);
  parallel_for(context, count, [&](std::int64_t p) { fill_heads(w.cols, panels + p * bytes); });
}

// One group of 32 inputs of a panel: scales and lines. Neurons that are none have codes of zero.
void pack_int4_group(const std::byte* const (&rows)[kPanel], std::int64_t neurons,
                     std::uint8_t* scales, std::uint8_t* lines) {
  constexpr std::int64_t kLine = 64, kHalf = kInt4Group / 2;
  std::fill_n(scales, kPanel, std::uint8_t{});
  std::fill_n(lines, kPanel * kHalf, std::uint8_t{0x88});
  for (std::int64_t n = 0; n < neurons; ++n) {
    const auto* block = reinterpret_cast<const std::uint8_t*>(rows[n]);
    scales[n] = block[0];
    std::uint8_t codes[kInt4Group];
    for (std::int64_t i = 0; i < kHalf; ++i) {
      codes[i] = block[1 + i] & 15U;
      codes[kHalf + i] = block[1 + i] >> 4U;
    }
    for (std::int64_t i = 0; i < kInt4Group; i += 8) {
      for (std::int64_t b = 0; b < 4; ++b) {
        lines[i / 8 * kLine + n * 4 + b] =
            static_cast<std::uint8_t>(codes[i + b] | codes[i + 4 + b] << 4U);
      }
    }
  }
}

void pack_int4(const Context* context, const WeightView& w, std::byte* packed) {
  constexpr std::int64_t kBlock = kInt4Head + kPanel * kCodeBlock / 2;
  const std::int64_t bytes = panel_bytes(w.type, w.cols);
  parallel_for(context, packed_panels(w.rows), [&](std::int64_t p) {
    auto* const panel = reinterpret_cast<std::uint8_t*>(packed + p * bytes);
    const std::int64_t neurons = std::min(kPanel, w.rows - p * kPanel);
    for (std::int64_t k = 0; k < w.cols; k += kInt4Group) {
      const std::byte* rows[kPanel] = {};
      for (std::int64_t n = 0; n < neurons; ++n) {
        rows[n] = w.row_bytes(p * kPanel + n) + bytes_of(w.type, k);
      }
      std::uint8_t* const block = panel + k / kCodeBlock * kBlock;
      const std::int64_t group = k % kCodeBlock / kInt4Group;
      if (group == 0) std::fill_n(block, kInt4Head, std::uint8_t{});
      pack_int4_group(rows, neurons, block + group * kPanel,
                      block + kInt4Head + group * kPanel * kInt4Group / 2);
    }
  });
}

// The inverse, of one neuron.
void unpack_int4_group(const std::uint8_t* scales, const std::uint8_t* lines, std::int64_t n,
                       std::uint8_t* block) {
  constexpr std::int64_t kLine = 64, kHalf = kInt4Group / 2;
  std::uint8_t codes[kInt4Group];
  for (std::int64_t i = 0; i < kInt4Group; i += 8) {
    for (std::int64_t b = 0; b < 4; ++b) {
      const std::uint8_t both = lines[i / 8 * kLine + n * 4 + b];
      codes[i + b] = both & 15U;
      codes[i + 4 + b] = both >> 4U;
    }
  }
  block[0] = scales[n];
  for (std::int64_t i = 0; i < kHalf; ++i) {
    block[1 + i] = static_cast<std::uint8_t>(codes[i] | codes[kHalf + i] << 4U);
  }
}

void unpack_int4(const Context* context, const WeightView& panels, std::uint8_t* rows) {
  constexpr std::int64_t kBlock = kInt4Head + kPanel * kCodeBlock / 2;
  const std::int64_t bytes = panel_bytes(panels.type, panels.cols);
  const std::int64_t row_bytes = bytes_of(panels.type, panels.cols);
  parallel_for(context, panels.rows, [&](std::int64_t r) {
    const auto* const panel = static_cast<const std::uint8_t*>(panels.data) + r / kPanel * bytes;
    for (std::int64_t k = 0; k < panels.cols; k += kInt4Group) {
      const std::uint8_t* const block = panel + k / kCodeBlock * kBlock;
      const std::int64_t group = k % kCodeBlock / kInt4Group;
      unpack_int4_group(block + group * kPanel, block + kInt4Head + group * kPanel * kInt4Group / 2,
                        r % kPanel, rows + r * row_bytes + bytes_of(panels.type, k));
    }
  });
}

template <class View>
void unpack_runs(const Context* context, const WeightView& panels, View w) {
  for_each_run(
      context, w, panels.type, static_cast<const std::byte*>(panels.data),
      [](const std::byte* /*panel*/, std::int64_t /*bytes*/, std::int64_t /*neurons*/) {},
      [](std::byte* row, const std::byte* word, std::int64_t words) {
        copy_run(word, kPanel * kWord, row, kWord, words);
      },
      [](std::byte* row, const std::byte* word, std::size_t bytes) {
        std::memcpy(row, word, bytes);
      });
}

// As for_each_run() takes a matrix of bytes.
struct Bytes {
  std::byte* data;
  std::int64_t rows, cols;
  std::byte* row_bytes(std::int64_t r) const { return data + r * cols; }
};

void pack_runs(const Context* context, const WeightView& w, std::byte* packed) {
  const bool padded = panel_bytes(w.type, w.cols) != kPanel * bytes_of(w.type, w.cols);
  for_each_run(
      context, w, w.type, packed,
      [=](std::byte* panel, std::int64_t bytes, std::int64_t neurons) {
        if (neurons < kPanel || padded) std::fill_n(panel, bytes, std::byte{});
      },
      [](const std::byte* row, std::byte* word, std::int64_t words) {
        copy_run(row, kWord, word, kPanel * kWord, words);
      },
      [](const std::byte* row, std::byte* word, std::size_t bytes) {
        std::memcpy(word, row, bytes);
      });
  if (traits_of(w.type).head > 0) fill_all_heads(context, w, packed);
}

// Behind the panels, with zeros for neurons that are none.
void pack_scales(const WeightView& w, std::byte* packed) {
  const std::int64_t count = packed_panels(w.rows);
  auto* scales = reinterpret_cast<float*>(packed + count * panel_bytes(w.type, w.cols));
  std::copy_n(w.scales, w.rows, scales);
  std::fill_n(scales + w.rows, count * kPanel - w.rows, 0.0F);
}

}  // namespace

WeightView packed_view(const void* data, WeightType type, std::int64_t rows, std::int64_t cols) {
  WeightView out;
  out.data = data;
  out.type = type;
  out.layout = WeightLayout::panels;
  out.rows = rows;
  out.cols = out.row_stride = cols;
  if (has_scales(type)) {
    out.scales = reinterpret_cast<const float*>(static_cast<const std::byte*>(data) +
                                                packed_panels(rows) * panel_bytes(type, cols));
  }
  return out;
}

void pack_weight(const WeightView& w, void* packed, const Context* context) {
  require_weight(w, "pack_weight");
  require_prepared(packed, "pack_weight");
  require_scaled_by("pack_weight", "w", w, ScaledBy::row);
  require_finite_scales("pack_weight", "w", w);
  auto* const panels = static_cast<std::byte*>(packed);
  in_blocks(w.type) ? pack_int4(context, w, panels) : pack_runs(context, w, panels);
  if (has_scales(w.type)) pack_scales(w, panels);
}

PackedWeight::PackedWeight(const WeightView& w, const Context* context) {
  require_weight(w, "PackedWeight");
  memory_ = PreparedMemory(packed_bytes(w.type, w.rows, w.cols));
  pack_weight(w, memory_.mutable_data(), context);
  view_ = packed_view(memory_.data(), w.type, w.rows, w.cols);
}

void unpack_weight(const WeightView& panels, MatrixView w, const Context* context) {
  constexpr const char* kOperation = "unpack_weight";
  require_panels(kOperation, "panels", panels);
  require(!has_scales(panels.type), kOperation, "panels", "expected bf16 or f32, got ",
          name_of(panels.type));
  require(panels.type == weight_type(w.dtype) && panels.rows == w.rows && panels.cols == w.cols,
          kOperation, "w", "expected ", name_of(panels.type), " [", panels.rows, ", ", panels.cols,
          "], got ", name_of(w.dtype), " [", w.rows, ", ", w.cols, "]");
  require_view(kOperation, "w", w);
  unpack_runs(context, panels, w);
}

void unpack_codes(const WeightView& panels, void* matrix, const Context* context) {
  constexpr const char* kOperation = "unpack_codes";
  require_panels(kOperation, "panels", panels);
  require(has_scales(panels.type), kOperation, "panels", "expected codes, got ",
          name_of(panels.type));
  require_prepared(matrix, kOperation);
  auto* const bytes = static_cast<std::byte*>(matrix);
  const std::int64_t row_bytes = bytes_of(panels.type, panels.cols);
  if (in_blocks(panels.type)) {
    unpack_int4(context, panels, reinterpret_cast<std::uint8_t*>(bytes));
  } else {
    unpack_runs(context, panels, Bytes{bytes, panels.rows, panels.cols});
  }
  const std::int64_t codes = panels.rows * row_bytes;
  std::byte* const scales = bytes + coded_scales_at(panels.rows, row_bytes);
  std::byte* const end = bytes + coded_extent(panels.rows, row_bytes, ScaledBy::row) * row_bytes;
  std::fill(bytes + codes, end, std::byte{});
  std::memcpy(scales, panels.scales, static_cast<std::size_t>(panels.rows) * sizeof(float));
}

}  // namespace twell
