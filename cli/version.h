// The project's version.
#pragma once

namespace twell::cli {

extern const char* const kVersion;  // "0.1.0"

}  // namespace twell::cli
