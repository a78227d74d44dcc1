#include "twell/packed.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "format/prepared.h"

namespace twell {
namespace {

// A panel is [depth][16 neurons] of words: a pair of bf16 inputs, or one f32.
using Word = std::uint32_t;
constexpr std::int64_t kWord = sizeof(Word);

// Words that are copied of one neuron before the next one's: 4 KB of a panel, which stay in L1
// until all neurons are there. A whole panel is more than L1, and took 15 times as long.
constexpr std::int64_t kRun = 64;

// Panel by panel on all threads: begin(panel, its bytes, neurons), then run(row, place in the
// panel, words) for runs of words, those of all neurons in turns; part(row, place, bytes) for what
// is less than a word at the end of a row. `Panel`: std::byte or const std::byte.
template <class View, class Panel, class Begin, class Run, class Part>
void for_each_run(View w, WeightType type, Panel* packed, Begin begin, Run run, Part part) {
  const std::int64_t row_bytes = bytes_of(type, w.cols);
  const std::int64_t words = row_bytes / kWord;
  const auto panel_bytes = static_cast<std::int64_t>(packed_bytes(type, kPanel, w.cols));
  const std::int64_t panels = packed_panels(w.rows);
#pragma omp parallel for schedule(static)
  for (std::int64_t p = 0; p < panels; ++p) {
    Panel* const panel = packed + p * panel_bytes;
    const std::int64_t neurons = std::min(kPanel, w.rows - p * kPanel);
    begin(panel, panel_bytes, neurons);
    const auto place = [&](std::int64_t word, std::int64_t n) {
      return panel + (word * kPanel + n) * kWord;
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
  }
}

// Rows may start anywhere, so words are copied as bytes.
void copy_run(const std::byte* from, std::int64_t from_step, std::byte* to, std::int64_t to_step,
              std::int64_t words) {
  for (; words > 0; --words, from += from_step, to += to_step) std::memcpy(to, from, sizeof(Word));
}

constexpr std::size_t kHugePage = 2U << 20U;

std::shared_ptr<void> allocate_small(std::size_t bytes) {
  constexpr std::size_t kLine = PreparedMemory::kAlignment;
  const std::size_t whole = std::max(bytes, std::size_t{1}) + kLine - 1;
  return {std::aligned_alloc(kLine, whole / kLine * kLine), std::free};
}

// Null where there is no memory.
std::shared_ptr<void> allocate_huge(std::size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);  // advice: refused, pages are just small
  return {memory, [bytes](void* p) { munmap(p, bytes); }};
}

}  // namespace

PreparedMemory::PreparedMemory(std::size_t bytes) : bytes_(bytes) {
  data_ = bytes < kHugePage ? allocate_small(bytes) : allocate_huge(bytes);
  if (data_ == nullptr) {
    throw Error(ErrorKind::out_of_memory, "twell::PreparedMemory",
                concat("cannot allocate ", bytes, " bytes for a weight"));
  }
}

void pack_weight(const WeightView& w, void* packed) {
  require_weight(w, "pack_weight");
  require_prepared(packed, "pack_weight");
  const bool padded = packed_depth(w.type, w.cols) != w.cols;
  for_each_run(
      w, w.type, static_cast<std::byte*>(packed),
      [=](std::byte* panel, std::int64_t bytes, std::int64_t neurons) {
        if (neurons < kPanel || padded) std::fill_n(panel, bytes, std::byte{});
      },
      [](const std::byte* row, std::byte* word, std::int64_t words) {
        copy_run(row, kWord, word, kPanel * kWord, words);
      },
      [](const std::byte* row, std::byte* word, std::size_t bytes) {
        std::memcpy(word, row, bytes);
      });
}

PackedWeight::PackedWeight(const WeightView& w) {
  require_weight(w, "PackedWeight");
  memory_ = PreparedMemory(packed_bytes(w.type, w.rows, w.cols));
  pack_weight(w, memory_.mutable_data());
  view_ = WeightView::panels(memory_.data(), w.type, w.rows, w.cols);
}

void unpack_weight(const WeightView& panels, MatrixView w) {
  constexpr const char* kOperation = "unpack_weight";
  require_panels(kOperation, "panels", panels);
  require(panels.type == weight_type(w.dtype) && panels.rows == w.rows && panels.cols == w.cols,
          kOperation, "w", "expected ", name_of(panels.type), " [", panels.rows, ", ", panels.cols,
          "], got ", name_of(w.dtype), " [", w.rows, ", ", w.cols, "]");
  require_view(kOperation, "w", w);
  for_each_run(
      w, panels.type, static_cast<const std::byte*>(panels.data),
      [](const std::byte* /*panel*/, std::int64_t /*bytes*/, std::int64_t /*neurons*/) {},
      [](std::byte* row, const std::byte* word, std::int64_t words) {
        copy_run(word, kPanel * kWord, row, kWord, words);
      },
      [](std::byte* row, const std::byte* word, std::size_t bytes) {
        std::memcpy(row, word, bytes);
      });
}

}  // namespace twell
