// The machine-readable results of a command.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace twell::cli {

// Throws twell::Error where `path` could not be written: its directory is missing or read-only, or
// it is a directory itself. "" is fine. `option` is what the message names.
void check_output_file(const std::string& option, const std::string& path);
// The same for --json, where "-" is fine as well.
void check_json_target(const std::string& path);

// Indented, replaced atomically; "-" prints to standard output. Numbers that are no JSON (NaN,
// infinities) become null.
void write_json(const std::string& path, const nlohmann::json& value);

}  // namespace twell::cli
