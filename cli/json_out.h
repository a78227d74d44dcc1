// What commands leave in files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace twell::cli {

// The kinds of files that commands write, each with a mark of its own.
enum class OutputKind { results, token_shard, trace, chart };

// Throws twell::Error, naming `option`, where the file `path` could not be written or holds
// anything but an earlier output of this kind. Leaves nothing behind.
void check_output_file(const std::string& option, const std::string& path, OutputKind kind);
// The same for a directory that will be made: it must not be there, or be empty.
void check_output_directory(const std::string& option, const std::string& path);

// Indented, replaced atomically; "-" prints to standard output. Numbers that are no JSON (NaN,
// infinities) become null.
void write_json(const std::string& path, const nlohmann::json& value);

}  // namespace twell::cli
