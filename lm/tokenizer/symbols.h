// What a word is before any merge: the ids of its bytes, or of its characters.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace twell::io {

class Symbols {
 public:
  struct Options {
    bool byte_level = false;     // one symbol a byte (byte_symbols()), else one a character
    bool byte_fallback = false;  // a character without a symbol is its bytes, "<0x0A>" and the like
    bool fuse_unknown = false;   // one unknown token for a run
    std::int32_t unknown = -1;   // for what has no symbol; < 0: it is dropped
  };
  explicit Symbols(const Options& options);

  // Takes an entry of the vocabulary, if it is a symbol.
  void add(std::string_view content, std::int32_t id);

  // Appends the symbols of `word`, which is valid UTF-8.
  void append(std::string_view word, std::vector<std::int32_t>& out) const;

  bool byte_level() const { return options_.byte_level; }
  bool has(char32_t code) const { return of_code_.contains(code); }
  bool drops_nothing() const { return options_.unknown >= 0; }

 private:
  // Whether all bytes of a character have symbols; appends them if so.
  bool append_bytes(std::string_view bytes, std::vector<std::int32_t>& out) const;

  Options options_;
  std::array<std::int32_t, 256> of_byte_{};  // < 0: none. Of characters alone: the fallback
  std::unordered_map<char32_t, std::int32_t> of_code_;
};

}  // namespace twell::io
