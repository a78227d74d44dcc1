// Byte-level BPE, the tokenizer of GPT-2 and its heirs.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_impl.h"

namespace twell::io {

class ByteLevelTokenizer : public Tokenizer::Impl {
 public:
  // What makes up one, in the terms of tokenizer.json.
  struct Parts {
    std::vector<std::pair<std::string, std::int32_t>> vocab;
    std::vector<std::pair<std::string, std::string>> merges;  // by rank
    std::vector<AddedToken> added;
    std::unique_ptr<PreTokenizer> pre_tokenizer;
    bool nfc = false;
    bool ignore_merges = false;  // a word that is a token as a whole needs no merging
    bool fuse_unknown = false;
    std::string unknown;               // token for bytes without a symbol; empty: they are dropped
    std::vector<std::int32_t> prefix;  // what the post-processor puts around a text
    std::vector<std::int32_t> suffix;
  };
  // Throws Error (environment) where the parts contradict each other.
  ByteLevelTokenizer(Parts parts, const std::string& file);

  void encode(std::string_view text, bool add_special_tokens,
              std::vector<std::int32_t>& out) const override;

 private:
  void add_vocab(const Parts& parts, const std::string& file);
  void add_merges(const Parts& parts, const std::string& file);
  void add_added(const Parts& parts, const std::string& file);
  void encode_plain(std::string_view text, std::vector<std::int32_t>& out) const;
  void encode_word(std::string_view word, std::vector<std::int32_t>& out) const;

  MergeTable merges_;
  std::array<std::int32_t, 256> byte_ids_{};                   // < 0: no symbol for this byte
  std::unordered_map<std::string, std::int32_t> whole_words_;  // ignore_merges: by bytes
  AddedTokenFinder in_text_;
  AddedTokenFinder in_normalized_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  bool nfc_;
  bool fuse_unknown_;
  std::int32_t unknown_ = -1;
  std::vector<std::int32_t> prefix_;
  std::vector<std::int32_t> suffix_;
  mutable WordCache cache_;
};

}  // namespace twell::io
