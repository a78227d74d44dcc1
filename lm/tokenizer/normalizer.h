// What a tokenizer does to a text before it cuts it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/json_reader.h"
#include "tokenizer/pattern.h"

namespace twell::io {

class Normalizer {
 public:
  // Nothing.
  Normalizer() = default;
  // The member "normalizer" of tokenizer.json: NFC, NFKC, Prepend, Replace and Sequence of them.
  // Throws Error (unsupported) on other kinds.
  explicit Normalizer(const JsonObject& json);

  bool empty() const { return steps_.empty(); }
  // `text` is valid UTF-8.
  std::string operator()(std::string_view text) const;

 private:
  enum class Kind : std::uint8_t { nfc, nfkc, prepend, replace };
  struct Step {
    Kind kind;
    std::string content = {};  // to prepend, or in the place of matches
    std::optional<Pattern> pattern = {};
  };
  void read(const JsonObject& json);

  std::vector<Step> steps_;
};

}  // namespace twell::io
