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

// Whether it is a terminal that knows control sequences: TERM names one other than "dumb".
bool knows_sequences(std::FILE* out);
// Whether words there may be bold: it is such a terminal, and NO_COLOR does not object.
bool shows_colour(std::FILE* out);
// Of a line there: what COLUMNS says, else what the terminal says, else 80.
int columns_of(std::FILE* out);

}  // namespace twell::cli
