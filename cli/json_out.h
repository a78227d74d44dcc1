// What commands leave in files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace twell::cli {

// What tells that a file is an earlier output, so that it may be replaced: it holds these bytes.
inline constexpr const char* kResultsMark = "\"twell\": \"";
inline constexpr const char* kShardMark = "TWELLTOK";
inline constexpr const char* kTraceMark = "TWELLTRC";
inline constexpr const char* kChartMark = ".grid { stroke: #e2e8f0; }";

// Throws twell::Error, naming `option`, where the file `path` could not be written or holds
// anything but an earlier output with this mark. Leaves nothing behind.
void check_output_file(const std::string& option, const std::string& path, std::string_view mark);
// The same for a directory that will be made: it must not be there, or be empty.
void check_output_directory(const std::string& option, const std::string& path);

// Indented, replaced atomically; "-" prints to standard output. Numbers that are no JSON (NaN,
// infinities) become null.
void write_json(const std::string& path, const nlohmann::json& value);

}  // namespace twell::cli
