#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "files/file_error.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

// GPT-2's expression, by hand: it is the hot loop, and PCRE2 is slower.
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// Returns the end of the word that begins at `begin`.
std::size_t gpt2_word(std::string_view text, std::size_t begin) {
  const std::string_view rest = text.substr(begin);
  if (rest.size() > 1 && rest[0] == '\'') {
    if (std::string_view("stmd").find(rest[1]) != std::string_view::npos) return begin + 2;
    for (const std::string_view suffix : {"'re", "'ve", "'ll"}) {
      if (rest.starts_with(suffix)) return begin + suffix.size();
    }
  }
  std::size_t at = begin + (rest[0] == ' ' && rest.size() > 1 ? 1 : 0);
  const CodeClass kind = code_class(next_code(text, at));
  // A run of one class; for spaces: [begin, last) is the run without its last character.
  std::size_t last = begin;
  if (kind == CodeClass::space) at = begin;
  while (at < text.size()) {
    std::size_t next = at;
    if (code_class(next_code(text, next)) != kind) break;
    last = at;
    at = next;
  }
  // The last of several spaces belongs to the next word, if there is one.
  return kind == CodeClass::space && at < text.size() && last > begin ? last : at;
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex)
      : add_prefix_space_(add_prefix_space), use_regex_(use_regex) {}

  void split(std::string_view text, const PieceSink& sink) const override {
    std::string prefixed;
    if (add_prefix_space_ && !text.starts_with(' ')) {
      prefixed.reserve(text.size() + 1);
      prefixed += ' ';
      prefixed += text;
      text = prefixed;
    }
    if (!use_regex_) return sink(text);
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = gpt2_word(text, begin);
      sink(text.substr(begin, end - begin));
      begin = end;
    }
  }

 private:
  bool add_prefix_space_;
  bool use_regex_;
};

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class Split : public PreTokenizer {
 public:
  Split(std::optional<Regex> regex, std::string literal, Behavior behavior, bool invert)
      : regex_(std::move(regex)),
        literal_(std::move(literal)),
        behavior_(behavior),
        invert_(invert) {}

  void split(std::string_view text, const PieceSink& sink) const override {
    std::vector<Part> parts = parts_of(text);
    switch (behavior_) {
      case Behavior::isolated:
        break;
      case Behavior::removed:
        std::erase_if(parts, [](const Part& part) { return part.is_match; });
        break;
      case Behavior::contiguous:
        join(parts,
             [](const Part& left, const Part& right) { return left.is_match == right.is_match; });
        break;
      case Behavior::merged_with_previous:
        join_matches(parts);
        break;
      case Behavior::merged_with_next:
        std::reverse(parts.begin(), parts.end());
        join_matches(parts);
        std::reverse(parts.begin(), parts.end());
        break;
    }
    for (const Part& part : parts) {
      if (part.end > part.begin) sink(text.substr(part.begin, part.end - part.begin));
    }
  }

 private:
  struct Part : Span {
    bool is_match = false;
  };

  std::vector<Span> matches(std::string_view text) const {
    if (regex_) return regex_->find_all(text);
    std::vector<Span> out;
    if (literal_.empty()) return out;
    for (std::size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, at + literal_.size())) {
      out.push_back({at, at + literal_.size()});
    }
    return out;
  }

  // The whole text, cut into matches and what lies between.
  std::vector<Part> parts_of(std::string_view text) const {
    std::vector<Part> out;
    std::size_t at = 0;
    for (const Span& match : matches(text)) {
      if (at != match.begin) out.push_back({{at, match.begin}, invert_});
      out.push_back({match, !invert_});
      at = match.end;
    }
    if (at != text.size()) out.push_back({{at, text.size()}, invert_});
    return out;
  }

  template <class Same>
  static void join(std::vector<Part>& parts, Same same) {
    std::vector<Part> out;
    for (const Part& part : parts) {
      if (!out.empty() && same(out.back(), part)) {
        out.back().end = part.end;
      } else {
        out.push_back(part);
      }
    }
    parts = std::move(out);
  }

  // Each match joins the part before it in the list, unless that is a match itself.
  static void join_matches(std::vector<Part>& parts) {
    std::vector<Part> out;
    bool previous_match = false;
    for (const Part& part : parts) {
      if (part.is_match && !previous_match && !out.empty()) {
        out.back().begin = std::min(out.back().begin, part.begin);
        out.back().end = std::max(out.back().end, part.end);
      } else {
        out.push_back(part);
      }
      previous_match = part.is_match;
    }
    parts = std::move(out);
  }

  std::optional<Regex> regex_;
  std::string literal_;
  Behavior behavior_;
  bool invert_;
};

class Sequence : public PreTokenizer {
 public:
  explicit Sequence(std::vector<std::unique_ptr<PreTokenizer>> steps) : steps_(std::move(steps)) {}

  void split(std::string_view text, const PieceSink& sink) const override { from(0, text, sink); }

 private:
  void from(std::size_t step, std::string_view text, const PieceSink& sink) const {
    if (step == steps_.size()) return sink(text);
    if (step + 1 == steps_.size()) return steps_[step]->split(text, sink);
    steps_[step]->split(text, [&](std::string_view piece) { from(step + 1, piece, sink); });
  }

  std::vector<std::unique_ptr<PreTokenizer>> steps_;
};

Behavior read_behavior(const JsonObject& json) {
  const std::string name = json.string("behavior");
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  fail_unsupported(json.file(), "{} is {}, which is not supported", json.path_of("behavior"),
                   in_quotes(name));
}

std::unique_ptr<PreTokenizer> read_split(const JsonObject& json) {
  const JsonObject pattern = json.object("pattern");
  std::optional<Regex> regex;
  std::string literal;
  if (pattern.has("Regex")) {
    regex.emplace(pattern.string("Regex"), json.file());
  } else {
    literal = pattern.string("String");
  }
  return std::make_unique<Split>(std::move(regex), std::move(literal), read_behavior(json),
                                 json.boolean("invert", false));
}

std::unique_ptr<PreTokenizer> read_step(const JsonObject& json, bool& byte_level) {
  const std::string type = json.string("type");
  if (type == "ByteLevel") {
    // Its output is no text but symbols for bytes: what follows would see those.
    if (byte_level) fail_unsupported(json.file(), "two pre-tokenizers ByteLevel are not supported");
    byte_level = true;
    return std::make_unique<ByteLevel>(json.boolean("add_prefix_space", true),
                                       json.boolean("use_regex", true));
  }
  if (byte_level) {
    fail_unsupported(json.file(), "a pre-tokenizer ({}) behind ByteLevel is not supported",
                     in_quotes(type));
  }
  if (type == "Digits") {
    const bool each = json.boolean("individual_digits", false);
    return std::make_unique<Split>(Regex(R"(\p{N})", json.file()), "",
                                   each ? Behavior::isolated : Behavior::contiguous, false);
  }
  if (type == "Split") return read_split(json);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> steps;
    for (const JsonObject& step : json.objects("pretokenizers")) {
      steps.push_back(read_step(step, byte_level));
    }
    return std::make_unique<Sequence>(std::move(steps));
  }
  fail_unsupported(json.file(),
                   "pre-tokenizer {} is not supported (supported: ByteLevel, Digits, Split, "
                   "Sequence)",
                   in_quotes(type));
}

}  // namespace

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const JsonObject& json) {
  bool byte_level = false;
  auto out = read_step(json, byte_level);
  if (!byte_level) {
    fail_unsupported(json.file(), "only byte-level tokenizers are supported (no ByteLevel in {})",
                     "pre_tokenizer");
  }
  return out;
}

std::unique_ptr<PreTokenizer> gpt2_pre_tokenizer() {
  return std::make_unique<ByteLevel>(false, true);
}

}  // namespace twell::io
