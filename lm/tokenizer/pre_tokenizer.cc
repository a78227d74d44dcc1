#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "files/file_error.h"
#include "tokenizer/metaspace.h"
#include "tokenizer/pattern.h"
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

class MetaspaceWords : public PreTokenizer {
 public:
  MetaspaceWords(Metaspace metaspace, bool prepend)
      : metaspace_(std::move(metaspace)), prepend_(prepend) {}

  void split(std::string_view text, const PieceSink& sink) const override {
    const std::string& mark = metaspace_.replacement;
    std::string marked = space_.replace(text, mark);
    if (prepend_ && !marked.starts_with(mark)) marked.insert(0, mark);
    const std::string_view all = marked;
    for (std::size_t begin = 0; begin < all.size();) {
      std::size_t end = metaspace_.split ? all.find(mark, begin + 1) : all.size();
      end = std::min(end, all.size());
      sink(all.substr(begin, end - begin));
      begin = end;
    }
  }

 private:
  Pattern space_{std::string(" ")};
  Metaspace metaspace_;
  bool prepend_;
};

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

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

  // The whole text, cut into matches and what lies between.
  std::vector<Part> parts_of(std::string_view text) const {
    std::vector<Part> out;
    std::size_t at = 0;
    for (const Span& match : pattern_.find_all(text)) {
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

  Pattern pattern_;
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

constexpr int kMostSteps = 64;  // each is a call within the one before

// Reads one of a pair of pre-tokenizers.
class Reader {
 public:
  explicit Reader(bool at_begin) : at_begin_(at_begin) {}

  std::unique_ptr<PreTokenizer> read(const JsonObject& json) {
    const std::string type = json.string("type");
    if (type != "Sequence" && byte_level) {
      // Its output is no text but symbols for bytes: what follows would see those.
      fail_unsupported(json.file(), "a pre-tokenizer ({}) behind ByteLevel is not supported",
                       in_quotes(type));
    }
    auto out = read_step(json, type);
    if (++steps_ > kMostSteps) {
      fail_unsupported(json.file(), "more than {} pre-tokenizers are not supported", kMostSteps);
    }
    if (type != "Sequence") behind_another_ = true;
    return out;
  }

  bool byte_level = false;
  bool differs_at_begin = false;

 private:
  std::unique_ptr<PreTokenizer> read_step(const JsonObject& json, const std::string& type) {
    if (type == "ByteLevel") {
      byte_level = true;
      return std::make_unique<ByteLevel>(json.boolean("add_prefix_space", true),
                                         json.boolean("use_regex", true));
    }
    if (type == "Metaspace") return read_words(json);
    if (type == "Digits") {
      const bool each = json.boolean("individual_digits", false);
      return std::make_unique<Split>(Pattern(Regex(R"(\p{N})", json.file())),
                                     each ? Behavior::isolated : Behavior::contiguous, false);
    }
    if (type == "Split") {
      return std::make_unique<Split>(Pattern::read(json), read_behavior(json),
                                     json.boolean("invert", false));
    }
    if (type == "Sequence") {
      std::vector<std::unique_ptr<PreTokenizer>> steps;
      for (const JsonObject& step : json.objects("pretokenizers")) steps.push_back(read(step));
      return std::make_unique<Sequence>(std::move(steps));
    }
    fail_unsupported(json.file(),
                     "pre-tokenizer {} is not supported (supported: ByteLevel, Digits, Metaspace, "
                     "Split, Sequence)",
                     in_quotes(type));
  }

  std::unique_ptr<PreTokenizer> read_words(const JsonObject& json) {
    Metaspace metaspace = read_metaspace(json);
    bool prepend = metaspace.prepend == Metaspace::Prepend::always;
    if (metaspace.prepend == Metaspace::Prepend::first) {
      if (behind_another_) {
        fail_unsupported(json.file(), "{} \"first\" behind another pre-tokenizer is not supported",
                         json.path_of("prepend_scheme"));
      }
      differs_at_begin = true;
      prepend = at_begin_;
    }
    return std::make_unique<MetaspaceWords>(std::move(metaspace), prepend);
  }

  bool at_begin_;
  bool behind_another_ = false;
  int steps_ = 0;
};

}  // namespace

PreTokenizers read_pre_tokenizers(const JsonObject& json) {
  Reader begin(true);
  PreTokenizers out;
  out.begin = begin.read(json);
  out.byte_level = begin.byte_level;
  if (begin.differs_at_begin) out.elsewhere = Reader(false).read(json);
  return out;
}

std::unique_ptr<PreTokenizer> gpt2_pre_tokenizer() {
  return std::make_unique<ByteLevel>(false, true);
}

}  // namespace twell::io
