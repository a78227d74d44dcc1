// A pattern of tokenizer.json: a regular expression, or text as it stands.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/json_reader.h"
#include "tokenizer/regex.h"

namespace twell::io {

class Pattern {
 public:
  explicit Pattern(Regex regex) : regex_(std::move(regex)) {}
  explicit Pattern(std::string text) : text_(std::move(text)) {}  // not empty
  // The member "pattern": {"Regex": …} or {"String": …}. Throws Error (unsupported) on empty text,
  // which would match everywhere.
  static Pattern read(const JsonObject& json);

  // All matches from left to right, none overlapping; `text` is valid UTF-8.
  std::vector<Span> find_all(std::string_view text) const;
  // `text` with `content` in the place of every match.
  std::string replace(std::string_view text, std::string_view content) const;

 private:
  std::optional<Regex> regex_;
  std::string text_;
};

}  // namespace twell::io
