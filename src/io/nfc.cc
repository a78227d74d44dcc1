// Annex 15 of the Unicode standard: decompose, order marks by class, compose.
#include "io/nfc.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "io/nfc_tables.h"
#include "io/unicode.h"

namespace twell::io {
namespace {

// Hangul syllables are computed: 19 leading consonants, 21 vowels, 27 trailing ones or none.
constexpr char32_t kSyllables = 0xAC00;
constexpr char32_t kLeading = 0x1100;
constexpr char32_t kVowels = 0x1161;
constexpr char32_t kTrailing = 0x11A7;  // one before the first: 0 means none
constexpr char32_t kLeadingCount = 19;
constexpr char32_t kVowelCount = 21;
constexpr char32_t kTrailingCount = 28;
constexpr char32_t kSyllableCount = kLeadingCount * kVowelCount * kTrailingCount;

// Nothing below U+0300 is a mark or decomposes in form C: the first composite is U+00C0, which is
// composed already.
constexpr char32_t kFirstInteresting = 0x300;

template <class Entry>
const Entry* find_whole(std::span<const Entry> table, char32_t code) {
  const auto found =
      std::lower_bound(table.begin(), table.end(), code,
                       [](const Entry& entry, char32_t value) { return entry.whole < value; });
  return found != table.end() && found->whole == code ? &*found : nullptr;
}

int combining_class(char32_t code) {
  const auto after = std::upper_bound(
      kCombiningRanges.begin(), kCombiningRanges.end(), code,
      [](char32_t value, const CombiningRange& range) { return value < range.first; });
  if (after == kCombiningRanges.begin()) return 0;
  const auto& range = *std::prev(after);
  return code <= range.last ? range.combining_class : 0;
}

void decompose(char32_t code, std::u32string& out) {
  if (code >= kSyllables && code < kSyllables + kSyllableCount) {
    const char32_t index = code - kSyllables;
    const auto add = [&out](char32_t first, char32_t offset) {
      out += static_cast<char32_t>(first + offset);
    };
    add(kLeading, index / (kVowelCount * kTrailingCount));
    add(kVowels, index / kTrailingCount % kVowelCount);
    if (index % kTrailingCount != 0) add(kTrailing, index % kTrailingCount);
    return;
  }
  const auto* pair = find_whole(kCanonicalPairs, code);
  if (pair == nullptr) pair = find_whole(kExcludedCanonicalPairs, code);
  if (pair != nullptr) {
    decompose(pair->first, out);
    decompose(pair->second, out);
  } else if (const auto* single = find_whole(kCanonicalSingletons, code)) {
    decompose(single->only, out);
  } else {
    out += code;
  }
}

std::vector<CanonicalPair> pairs_by_parts() {
  std::vector<CanonicalPair> out(kCanonicalPairs.begin(), kCanonicalPairs.end());
  std::sort(out.begin(), out.end(), [](const CanonicalPair& a, const CanonicalPair& b) {
    return a.first != b.first ? a.first < b.first : a.second < b.second;
  });
  return out;
}

std::optional<char32_t> compose(char32_t first, char32_t second) {
  if (first >= kLeading && first < kLeading + kLeadingCount && second >= kVowels &&
      second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeading) * kVowelCount + (second - kVowels)) * kTrailingCount;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount &&
      (first - kSyllables) % kTrailingCount == 0 && second > kTrailing &&
      second < kTrailing + kTrailingCount) {
    return first + (second - kTrailing);
  }
  static const std::vector<CanonicalPair> pairs = pairs_by_parts();
  const auto found = std::lower_bound(pairs.begin(), pairs.end(), std::pair(first, second),
                                      [](const CanonicalPair& pair, const auto& parts) {
                                        return std::pair(pair.first, pair.second) < parts;
                                      });
  if (found == pairs.end() || found->first != first || found->second != second) return {};
  return found->whole;
}

// Marks in a row, by class; equal classes keep their order.
void order_marks(std::u32string& codes) {
  for (std::size_t i = 0; i < codes.size();) {
    if (combining_class(codes[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    std::stable_sort(codes.begin() + static_cast<std::ptrdiff_t>(i),
                     codes.begin() + static_cast<std::ptrdiff_t>(end), [](char32_t a, char32_t b) {
                       return combining_class(a) < combining_class(b);
                     });
    i = end;
  }
}

std::u32string compose_all(const std::u32string& codes) {
  constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::u32string out;
  std::size_t starter = kNone;  // in `out`
  int last_class = -1;          // of what was kept since the starter; -1: nothing was
  for (const char32_t code : codes) {
    const int its_class = combining_class(code);
    if (starter != kNone && last_class < its_class) {
      if (const auto composed = compose(out[starter], code)) {
        out[starter] = *composed;
        continue;
      }
    }
    if (its_class == 0) {
      starter = out.size();
      last_class = -1;
    } else {
      last_class = its_class;
    }
    out += code;
  }
  return out;
}

}  // namespace

std::string to_nfc(std::string_view text) {
  // Characters below kFirstInteresting stay as they are unless a mark follows: only the stretches
  // of others, each with the character before it, are worked on.
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  while (at < text.size()) {
    // [at, plain): certain to stay. The last plain character may take part in a composition.
    std::size_t plain = at;
    std::size_t scan = at;
    bool interesting = false;
    while (scan < text.size() && !interesting) {
      const std::size_t before = scan;
      interesting = next_code(text, scan) >= kFirstInteresting;
      if (!interesting) plain = before;
    }
    if (!interesting) plain = text.size();
    out.append(text, at, plain - at);
    at = plain;
    if (at == text.size()) break;
    std::u32string codes;
    do {
      decompose(next_code(text, at), codes);
      plain = at;
    } while (at < text.size() && next_code(text, plain) >= kFirstInteresting);
    order_marks(codes);
    for (const char32_t code : compose_all(codes)) append_utf8(out, code);
  }
  return out;
}

}  // namespace twell::io
