// Byte-pair encoding: of bytes, as GPT-2 and its heirs have it, or of characters, as SentencePiece
// (Llama 2, Mistral).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/symbols.h"
#include "tokenizer/tokenizer_impl.h"

namespace twell::io {

class BpeTokenizer : public Tokenizer::Impl {
 public:
  // What makes up one, in the terms of tokenizer.json.
  struct Parts {
    std::vector<std::pair<std::string, std::int32_t>> vocab;
    std::vector<std::pair<std::string, std::string>> merges;  // by rank
    std::vector<AddedToken> added;
    Normalizer normalizer;
    PreTokenizers pre_tokenizers;  // both null: what lies between added tokens is one word
    TokenDecoder decoder;
    bool ignore_merges = false;  // a word that is a token as a whole needs no merging
    bool byte_fallback = false;
    bool fuse_unknown = false;
    std::string unknown;               // token for what has no symbol; empty: it is dropped
    std::vector<std::int32_t> prefix;  // what the post-processor puts around a text
    std::vector<std::int32_t> suffix;
  };
  // Throws Error (environment) where the parts contradict each other.
  BpeTokenizer(Parts parts, const std::string& file);

  void encode(std::string_view text, bool add_special_tokens,
              std::vector<std::int32_t>& out) const override;

 private:
  void add_vocab(const Parts& parts, const std::string& file);
  void add_merges(const Parts& parts, const std::string& file);
  void add_added(const Parts& parts, const std::string& file);
  void encode_plain(std::string_view text, bool at_begin, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;
  void merge_word(std::string_view word, std::vector<std::int32_t>& out) const;

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view word) const {
      return std::hash<std::string_view>{}(word);
    }
  };

  MergeTable merges_;
  Symbols symbols_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> whole_words_;
  bool cut_at_spaces_ = false;  // no merge reaches across the beginning of a run of U+2581
  AddedTokenFinder in_text_;
  AddedTokenFinder in_normalized_;
  Normalizer normalizer_;
  PreTokenizers pre_tokenizers_;
  std::vector<std::int32_t> prefix_;
  std::vector<std::int32_t> suffix_;
  mutable WordCache cache_;
};

}  // namespace twell::io
