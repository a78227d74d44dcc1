// Standard output and standard error, which may be closed, full, or a terminal that goes away.
#pragma once

#include <cstdio>
#include <string_view>

namespace twell::cli {

// Gives the numbers 0 to 2 to something where they are closed: the next file that is opened would
// get one of them, and be written full of words.
void hold_standard_streams();

// Writes and flushes. Never throws, so that no terminal that went away ends a long run; of standard
// output it is remembered.
void put(std::FILE* out, std::string_view text) noexcept;
// errno of the first put() to standard output that failed; 0: none did.
int output_error() noexcept;

// Whether words there may be bold: it is a terminal, and neither NO_COLOR nor TERM=dumb objects.
bool shows_colour(std::FILE* out);

}  // namespace twell::cli
