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
  // What the two engines write or understand differently is translated (\s, \v, \u, \x, long names
  // of properties, repeated intervals, the reach of (?i)) or refused (\w, \b, \h, nested classes,
  // flags other than i). Properties (\p{L}) are those of PCRE2's Unicode version. Throws Error:
  // environment on a syntax error, unsupported on what is refused.
  Regex(const std::string& pattern, const std::string& file);

  // All matches from left to right, none overlapping; `text` is valid UTF-8. Throws Error
  // (environment) where the expression takes too many steps.
  std::vector<Span> find_all(std::string_view text) const;

 private:
  std::string file_;
  std::shared_ptr<void> code_;
};

}  // namespace twell::io
