// Cuts a text into the words that byte-pair encoding works on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/json_reader.h"

namespace twell::io {

// Receives the pieces from left to right; each is valid only during the call.
using PieceSink = std::function<void(std::string_view)>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Hands every non-empty piece of `text` (not empty, valid UTF-8) to `sink`.
  virtual void split(std::string_view text, const PieceSink& sink) const = 0;
};

// One that is the same everywhere in a text, or a pair of them.
struct PreTokenizers {
  std::unique_ptr<PreTokenizer> begin;      // for what a text begins with
  std::unique_ptr<PreTokenizer> elsewhere;  // for what is behind; null where it is no other
  bool byte_level = false;                  // then words are of byte_symbols(), else of characters
};
// The member "pre_tokenizer" of tokenizer.json: ByteLevel, Digits, Metaspace, Split and Sequence of
// them. Throws Error (unsupported) on other kinds.
PreTokenizers read_pre_tokenizers(const JsonObject& json);

// What GPT-2 uses: ByteLevel with its expression, without a prefix space.
std::unique_ptr<PreTokenizer> gpt2_pre_tokenizer();

}  // namespace twell::io
