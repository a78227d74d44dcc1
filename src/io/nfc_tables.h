// Data of Unicode normalization form C, ascending by their first member.
#pragma once

#include <cstdint>
#include <span>

namespace twell::io {

struct CanonicalPair {
  char32_t whole;
  char32_t first;
  char32_t second;
};
struct CanonicalSingleton {
  char32_t whole;
  char32_t only;
};
struct CombiningRange {
  char32_t first;
  char32_t last;
  std::uint8_t combining_class;
};

extern const std::span<const CanonicalPair> kCanonicalPairs;
extern const std::span<const CanonicalPair> kExcludedCanonicalPairs;
extern const std::span<const CanonicalSingleton> kCanonicalSingletons;
extern const std::span<const CombiningRange> kCombiningRanges;

}  // namespace twell::io
