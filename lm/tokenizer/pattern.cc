#include "tokenizer/pattern.h"

#include "files/file_error.h"

namespace twell::io {

Pattern Pattern::read(const JsonObject& json) {
  const JsonObject pattern = json.object("pattern");
  if (pattern.has("Regex")) return Pattern(Regex(pattern.string("Regex"), json.file()));
  std::string text = pattern.string("String");
  if (text.empty()) {
    fail_unsupported(json.file(), "{} is empty, which is not supported", pattern.path_of("String"));
  }
  return Pattern(std::move(text));
}

std::vector<Span> Pattern::find_all(std::string_view text) const {
  if (regex_) return regex_->find_all(text);
  std::vector<Span> out;
  for (std::size_t at = text.find(text_); at != std::string_view::npos;
       at = text.find(text_, at + text_.size())) {
    out.push_back({at, at + text_.size()});
  }
  return out;
}

std::string Pattern::replace(std::string_view text, std::string_view content) const {
  std::string out;
  // `tokenizers` finds nothing in no text, not even an expression that matches it.
  if (text.empty()) return out;
  out.reserve(text.size());
  std::size_t done = 0;
  for (const Span& match : find_all(text)) {
    out += text.substr(done, match.begin - done);
    out += content;
    done = match.end;
  }
  out += text.substr(done);
  return out;
}

}  // namespace twell::io
