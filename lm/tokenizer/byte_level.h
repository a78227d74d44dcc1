// Bytes as tokens: the alphabet of byte-level vocabularies, one printable character for each byte;
// and the names that other vocabularies have for what they lack.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace twell::io {

// The character of each byte, as UTF-8: itself for the printable ones of Latin-1, U+0100 and
// upwards for the other 68.
const std::array<std::string, 256>& byte_symbols();

// "Ġthe" -> " the"; nothing where `symbols` holds another character.
std::optional<std::string> bytes_from_symbols(std::string_view symbols);

// "<0x0A>" -> '\n'; nothing for other names. As `tokenizers` reads them: "<0x0a>" and "<0x+A>" too.
std::optional<char> byte_of_name(std::string_view name);

}  // namespace twell::io
