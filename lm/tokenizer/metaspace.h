// "Metaspace" of tokenizer.json, a pre-tokenizer and a decoder: a visible character for the space.
#pragma once

#include <cstdint>
#include <string>

#include "files/json_reader.h"

namespace twell::io {

struct Metaspace {
  enum class Prepend : std::uint8_t { first, always, never };

  std::string replacement;  // one character
  Prepend prepend = Prepend::always;
  bool split = true;  // a word begins with each replacement
};

// Older files say add_prefix_space in the place of prepend_scheme.
Metaspace read_metaspace(const JsonObject& json);

// A member that holds one character, as UTF-8.
std::string read_character(const JsonObject& json, const char* key);

}  // namespace twell::io
