// twell: trains, measures, inspects and runs sparse language models.
#include <cstdio>
#include <cstdlib>

#include "cli/program.h"

int main(int argc, char** argv) {
  const int code = twell::cli::program(argc, argv);
  // Profilers and checkers that are loaded beside a program write as it ends what they found.
  for (const char* variable : {"LD_PRELOAD", "CUDA_INJECTION64_PATH"}) {
    if (std::getenv(variable) != nullptr) return code;
  }
  // PyTorch's destructors take its operators back one by one, for a third of what --version takes.
  std::fflush(nullptr);
  std::quick_exit(code);
}
