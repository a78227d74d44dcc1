// The command line as a whole: every command, and what becomes of errors.
#pragma once

namespace twell::cli {

// main(): the exit code.
int program(int argc, char** argv);

}  // namespace twell::cli
