// Regular expressions of tokenizer.json, which are written for Oniguruma, on PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Regex {
 public:
  // Character classes that PCRE2 knows differently or in another Unicode version (\s, \p{L}, \p{N})
  // are replaced by explicit ranges. Throws Error: environment on a syntax error, unsupported on
  // what the two engines understand differently (\w, \b, \h, nested classes, flags other than i).
  Regex(const std::string& pattern, const std::string& file);

  // All matches from left to right, none overlapping; `text` is valid UTF-8. Throws Error
  // (environment) where the expression takes too many steps.
  std::vector<Span> find_all(std::string_view text) const;

 private:
  std::string file_;
  std::shared_ptr<void> code_;
};

// Exposed for tests.
std::string to_pcre2(const std::string& pattern, const std::string& file);

}  // namespace twell::io
