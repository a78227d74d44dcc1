// twell bench: the parent of the two benchmarks.
#include "cli/command.h"

namespace twell::cli {

void add_bench(CLI::App& app) {
  CLI::App& bench = *app.add_subcommand("bench", "Measure dense against sparse");
  bench.require_subcommand(1);
  bench.footer("twell bench ffn --help and twell bench model --help tell more.");
  add_bench_ffn(bench);
  add_bench_model(bench);
}

}  // namespace twell::cli
