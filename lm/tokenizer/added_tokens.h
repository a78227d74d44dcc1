// Tokens that are cut out of a text before anything else sees it: <|endoftext|> and its like.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;  // only where no word character is beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalized text
};

// Finds tokens as the package `tokenizers` does: the leftmost, of these the longest.
class AddedTokenFinder {
 public:
  void add(const AddedToken& token);

  // Receives what lies between tokens (id -1, never empty) and the tokens (their text is
  // meaningless), from left to right.
  using Sink = std::function<void(std::string_view text, std::int32_t id)>;
  void split(std::string_view text, const Sink& sink) const;

 private:
  const AddedToken* match_at(std::string_view text, std::size_t at) const;

  // By first byte, longest first.
  std::array<std::vector<AddedToken>, 256> by_first_byte_;
  bool empty_ = true;
};

}  // namespace twell::io
