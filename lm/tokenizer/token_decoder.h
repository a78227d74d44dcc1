// From tokens to text: the member "decoder" of tokenizer.json.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/json_reader.h"
#include "tokenizer/pattern.h"

namespace twell::io {

// A chain of steps, each of which changes the list of tokens that the one before it gives.
class TokenDecoder {
 public:
  // ByteLevel.
  TokenDecoder();
  // ByteLevel, or a Sequence of Replace, ByteFallback, Metaspace, Strip and Fuse, or one of these.
  // Throws Error (unsupported) on other kinds, and on what would have to see the end of a text
  // before it could give its beginning.
  explicit TokenDecoder(const JsonObject& json);

  // What a token is to the first step, from its content in the vocabulary.
  std::string input(std::string_view content) const;

  // One text on its way through the chain, token by token.
  class Run {
   public:
    // `decoder` must outlive it.
    explicit Run(const TokenDecoder& decoder);
    // Appends what is certain after this token (as input() gives it): always whole characters.
    void push(std::string_view token, std::string& out);
    // Appends the rest; then the next text may begin.
    void finish(std::string& out);

   private:
    struct State {
      std::string bytes;      // that are no text yet
      std::size_t taken = 0;  // from the beginning, of what Step::count counts
      bool begun = false;     // something has passed that is not taken away
    };
    void feed(std::size_t step, std::string_view token, std::string& out);
    void flush_bytes(std::size_t step, std::string& out);
    void strip(std::size_t step, std::string_view token, std::string& out);

    const TokenDecoder* decoder_;
    std::vector<State> states_;
  };

 private:
  enum class Kind : std::uint8_t { byte_level, replace, byte_fallback, metaspace, strip, fuse };
  struct Step {
    Kind kind;
    bool fused = false;  // what it sees is one token, in parts
    std::optional<Pattern> pattern = {};
    std::string content = {};  // in the place of matches; a character to take away
    std::size_t count = 0;     // of these, at most; tokens that lose their matches
  };
  void read(const JsonObject& json);

  std::vector<Step> steps_;
};

}  // namespace twell::io
