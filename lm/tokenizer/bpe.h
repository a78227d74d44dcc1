// Byte-pair encoding of one word: merge the neighbours of the lowest rank until none is left.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace twell::io {

// Pairs of token ids that merge, and into what. Open addressing: the lookup is the inner loop.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;  // lower goes first
    std::int32_t id;     // of the merged token; < 0: the pair does not merge
  };

  explicit MergeTable(std::size_t expected);
  // The last one counts where a pair is added twice, as in `tokenizers`.
  void add(std::int32_t left, std::int32_t right, Merge merge);
  Merge find(std::int32_t left, std::int32_t right) const;

  // Merges `ids` in place. Of equal ranks the leftmost goes first. O(n log n).
  void merge(std::vector<std::int32_t>& ids) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge{0, -1};
  };
  static constexpr std::uint64_t kEmpty = ~0ULL;
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const;
  void grow();

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t used_ = 0;
};

// Remembers the ids of words: a text repeats its words. For several threads at once.
class WordCache {
 public:
  // Appends the ids and returns true where the word is known.
  bool find(std::string_view word, std::vector<std::int32_t>& out) const;
  void insert(std::string_view word, const std::int32_t* ids, std::size_t count);

  static constexpr std::size_t kLongestWord = 48;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const {
      return std::hash<std::string_view>{}(word);
    }
  };
  // 64 parts of at most 4096 words of at most 48 bytes: below 64 MB.
  static constexpr std::size_t kParts = 64;
  static constexpr std::size_t kWordsPerPart = 4096;
  struct Part {
    mutable std::mutex mutex;
    std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> words;
  };
  std::array<Part, kParts> parts_;
};

}  // namespace twell::io
