// twell: trains, measures, inspects and runs sparse language models.
#include <cstdio>
#include <cstdlib>

#include "cli/program.h"

namespace {

// By profilers and checkers, which write their results when a program exits.
bool is_watched() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return std::getenv("LD_PRELOAD") != nullptr || std::getenv("CUDA_INJECTION64_PATH") != nullptr;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int code = twell::cli::program(argc, argv);
  if (is_watched()) return code;
  // PyTorch's destructors take its operators back one by one, for a third of what --version takes.
  std::fflush(nullptr);
  std::quick_exit(code);
}
