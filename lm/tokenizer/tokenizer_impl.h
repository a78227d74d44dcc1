// What every kind of tokenizer has: a vocabulary, and a way back from tokens to text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/token_decoder.h"
#include "tokenizer/tokenizer.h"

namespace twell::io {

class Tokenizer::Impl {
 public:
  virtual ~Impl() = default;

  // `text` is valid UTF-8.
  virtual void encode(std::string_view text, bool add_special_tokens,
                      std::vector<std::int32_t>& out) const = 0;

  struct Token {
    std::string content;  // as in the file
    std::string piece;    // what the decoder is given for it
    bool present = false;
    bool special = false;
  };
  const Token* find(std::int32_t id) const;
  // One token on its way to text; an unknown id is nothing.
  void decode(std::int32_t id, bool skip_special_tokens, TokenDecoder::Run& run,
              std::string& out) const;

  // `found_as`: what is looked for in a text. Throws Error (environment) on an id that is taken, or
  // so large that the table of tokens would be mostly empty (`count`: tokens in the file).
  void add(std::int32_t id, std::string content, std::string_view found_as, std::size_t count,
           const std::string& file);
  void finish();  // hash, begin and end of text from customary names

  std::vector<Token> tokens;  // by id
  std::unordered_map<std::string, std::int32_t> ids;
  TokenDecoder decoder;
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::uint64_t hash = 0;
  // Name within a model directory and contents of every file it was read from.
  std::vector<std::pair<std::string, std::string>> files;
};

// The makers of each kind; Tokenizer's static functions hand on to these.
std::shared_ptr<Tokenizer::Impl> read_tokenizer_json(std::string_view json,
                                                     const std::string& file);
std::shared_ptr<Tokenizer::Impl> read_gpt2_tokenizer(std::string_view vocab_json,
                                                     std::string_view merges,
                                                     const std::string& file);

}  // namespace twell::io
