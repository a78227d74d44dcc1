// The project's version.
#pragma once

namespace twell::cli {

extern const char* const kVersion;  // that of python/twell/__init__.py

}  // namespace twell::cli
