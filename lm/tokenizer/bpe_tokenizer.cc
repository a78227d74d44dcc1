#include "tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "files/file_error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

// What SentencePiece has in the place of a space.
constexpr std::string_view kSpace = "\xE2\x96\x81";
constexpr char32_t kSpaceCode = 0x2581;

// The first place behind `from` where a run of kSpace begins; the end of `text` where none does.
std::size_t find_space(std::string_view text, std::size_t from) {
  for (std::size_t at = from; (at = text.find(kSpace, at)) != std::string_view::npos;
       at += kSpace.size()) {
    if (at > from && !text.substr(0, at).ends_with(kSpace)) return at;
  }
  return text.size();
}

Symbols::Options symbol_options(const BpeTokenizer::Parts& parts, const std::string& file) {
  Symbols::Options out{parts.pre_tokenizers.byte_level, parts.byte_fallback, parts.fuse_unknown};
  if (parts.unknown.empty()) return out;
  const auto found =
      std::ranges::find(parts.vocab, parts.unknown, &std::pair<std::string, std::int32_t>::first);
  if (found == parts.vocab.end()) {
    fail_file(file, "unk_token {} is not in the vocabulary", in_quotes(parts.unknown));
  }
  out.unknown = found->second;
  return out;
}

}  // namespace

BpeTokenizer::BpeTokenizer(Parts parts, const std::string& file)
    : merges_(parts.merges.size()), symbols_(symbol_options(parts, file)) {
  decoder = std::move(parts.decoder);
  normalizer_ = std::move(parts.normalizer);
  pre_tokenizers_ = std::move(parts.pre_tokenizers);
  prefix_ = std::move(parts.prefix);
  suffix_ = std::move(parts.suffix);
  add_vocab(parts, file);
  add_merges(parts, file);
  add_added(parts, file);
  for (const auto* around : {&prefix_, &suffix_}) {
    for (const std::int32_t id : *around) {
      if (find(id) == nullptr) {
        fail_file(file, "post_processor: the id {} is not in the vocabulary", id);
      }
    }
  }
}

void BpeTokenizer::add_vocab(const Parts& parts, const std::string& file) {
  if (parts.vocab.empty()) fail_file(file, "the vocabulary is empty");
  for (const auto& [content, id] : parts.vocab) {
    if (parts.ignore_merges) {
      // A word is of bytes; a byte-level vocabulary has symbols for them.
      const auto word =
          symbols_.byte_level() ? bytes_from_symbols(content) : std::optional(content);
      if (word) whole_words_.emplace(*word, id);
    }
    symbols_.add(content, id);
    add(id, content, content, parts.vocab.size() + parts.added.size(), file);
  }
}

void BpeTokenizer::add_merges(const Parts& parts, const std::string& file) {
  // What is in front of a run then ends with another symbol, and the run begins with its own.
  cut_at_spaces_ =
      symbols_.has(kSpaceCode) && symbols_.drops_nothing() && !parts.unknown.ends_with(kSpace);
  std::uint32_t rank = 0;
  for (const auto& merge : parts.merges) {
    const std::string& left = merge.first;
    const std::string& right = merge.second;
    const auto id_of = [&](const std::string& content) {
      const auto found = ids.find(content);
      if (found == ids.end()) {
        fail_file(file, "merge {} ({} {}): {} is not in the vocabulary", rank, in_quotes(left),
                  in_quotes(right), in_quotes(content));
      }
      return found->second;
    };
    const std::string merged = left + right;
    merges_.add(id_of(left), id_of(right), {rank, id_of(merged)});
    cut_at_spaces_ = cut_at_spaces_ && find_space(merged, 0) == merged.size();
    ++rank;
  }
}

void BpeTokenizer::add_added(const Parts& parts, const std::string& file) {
  // `tokenizers` gives new tokens the ids behind the vocabulary, whatever the file says.
  auto next = static_cast<std::int32_t>(parts.vocab.size());
  std::unordered_set<std::string> listed, normalized, as_they_are;
  for (const AddedToken& token : parts.added) {
    if (token.content.empty()) continue;
    const auto found = ids.find(token.content);
    const std::int32_t expected = found == ids.end() ? next++ : found->second;
    if (token.id != expected) {
      fail_file(file, "added token {} has the id {}, but {}", in_quotes(token.content), token.id,
                found == ids.end() ? fmt::format("the next that is free is {}", expected)
                                   : fmt::format("{} in the vocabulary", expected));
    }
    AddedToken sought = token;
    if (token.normalized) sought.content = normalizer_(token.content);
    const bool twice = !listed.insert(token.content).second;
    if (twice || !(token.normalized ? normalized : as_they_are).insert(sought.content).second) {
      fail_file(file, "two added tokens are looked for as {}", in_quotes(sought.content));
    }
    if (found == ids.end()) {
      add(token.id, token.content, sought.content, parts.vocab.size() + parts.added.size(), file);
    } else {
      tokens[static_cast<std::size_t>(token.id)].piece = decoder.input(sought.content);
    }
    tokens[static_cast<std::size_t>(token.id)].special = token.special;
    (token.normalized ? in_normalized_ : in_text_).add(sought);
  }
}

void BpeTokenizer::encode(std::string_view text, bool add_special_tokens,
                          std::vector<std::int32_t>& out) const {
  if (add_special_tokens) out.insert(out.end(), prefix_.begin(), prefix_.end());
  const char* const begin = text.data();
  const auto plain = [&](std::string_view part, std::int32_t id) {
    if (id >= 0) {
      out.push_back(id);
    } else {
      encode_plain(part, part.data() == begin, out);
    }
  };
  in_text_.split(text, [&](std::string_view part, std::int32_t id) {
    if (id >= 0) return plain({}, id);
    if (normalizer_.empty()) return in_normalized_.split(part, plain);
    in_normalized_.split(normalizer_(part), plain);
  });
  if (add_special_tokens) out.insert(out.end(), suffix_.begin(), suffix_.end());
}

void BpeTokenizer::encode_plain(std::string_view text, bool at_begin,
                                std::vector<std::int32_t>& out) const {
  const PreTokenizers& pre = pre_tokenizers_;
  if (pre.begin == nullptr) return encode_word(text, out);
  const PreTokenizer& splitter = at_begin || pre.elsewhere == nullptr ? *pre.begin : *pre.elsewhere;
  splitter.split(text, [&](std::string_view word) { encode_word(word, out); });
}

void BpeTokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  if (!whole_words_.empty()) {
    if (const auto whole = whole_words_.find(word); whole != whole_words_.end()) {
      out.push_back(whole->second);
      return;
    }
  }
  if (!cut_at_spaces_) return merge_word(word, out);
  for (std::size_t begin = 0; begin < word.size();) {
    const std::size_t end = find_space(word, begin);
    merge_word(word.substr(begin, end - begin), out);
    begin = end;
  }
}

void BpeTokenizer::merge_word(std::string_view word, std::vector<std::int32_t>& out) const {
  const bool cached = word.size() <= WordCache::kLongestWord;
  if (cached && cache_.find(word, out)) return;
  if (word.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail_argument("Tokenizer::encode", "one word has {} bytes, more than 2^31", word.size());
  }
  std::vector<std::int32_t> symbols;
  symbols.reserve(word.size());
  symbols_.append(word, symbols);
  merges_.merge(symbols);
  if (cached) cache_.insert(word, symbols.data(), symbols.size());
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace twell::io
