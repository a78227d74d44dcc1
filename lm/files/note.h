// What a person should know though nothing failed.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace twell::io {

// Tells one line, for example "run: this file system has no locks; ...". The same line is told once
// in a process, from whichever thread it comes. To standard error, as "note: LINE", or to where
// set_note_sink() leads.
void note(std::string_view line);

// Receives each line, without an end of line. An empty function: nobody is told.
void set_note_sink(std::function<void(const std::string& line)> sink);

}  // namespace twell::io
