#include "cli/version.h"

namespace twell::cli {

const char* const kVersion = TWELL_VERSION;

}  // namespace twell::cli
