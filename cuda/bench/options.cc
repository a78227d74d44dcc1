#include "cuda/bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "twell/cuda.h"

namespace twell::bench {
namespace {

// CLI11's own says the largest double, digit by digit.
const CLI::Validator kPositive(
    [](const std::string& text) {
      double value = 0;
      const bool right = CLI::detail::lexical_cast(text, value) && value > 0;
      return right ? std::string() : "expected a number above 0, got " + text;
    },
    "ABOVE 0");

CLI::Validator multiple_of(int factor) {
  const std::string name = std::to_string(factor);
  return {[factor, name](const std::string& text) {
            std::int64_t value = 0;
            const bool right =
                CLI::detail::lexical_cast(text, value) && value > 0 && value % factor == 0;
            return right ? std::string() : "expected a multiple of " + name + ", got " + text;
          },
          "MULTIPLE OF " + name};
}

}  // namespace

bool Options::has(const char* part) const {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

bool Options::has_ceilings() const {
  return std::any_of(parts.begin(), parts.end(), [](const std::string& part) {
    return std::find(std::begin(kProbes), std::end(kProbes), part) == std::end(kProbes);
  });
}

void declare(CLI::App& app, Options& options) {
  const auto list = [&](const char* name, auto& values, const char* what) {
    return app.add_option(name, values, what)->delimiter(',')->capture_default_str();
  };
  const auto numbers = [&](const char* name, auto& values, const char* what) {
    list(name, values, what)->check(kPositive);
  };
  CLI::Option* names = app.add_flag("--list", options.list, "Name the variants; needs no GPU");
  app.add_flag("--predict", options.predict, "Print what an H100 should take; needs no GPU")
      ->excludes(names);
  app.add_option("--json", options.json, "Write what is measured, a JSON object a line")
      ->type_name("FILE");
  std::vector<std::string> known = Options().parts;
  known.insert(known.end(), std::begin(kProbes), std::end(kProbes));
  list("--only", options.parts, "Parts to run, after the ceilings but for probes")
      ->check(CLI::IsMember(known));
  numbers("--tokens", options.tokens, "Tokens of a call");
  numbers("--nnz", options.nnz, "Mean non-zeros of a token");
  numbers("--train-tokens", options.train_tokens, "Tokens of a training step");
  numbers("--train-nnz", options.train_nnz, "Mean non-zeros of a token in training");
  app.add_option("--runs", options.runs, "Timed runs of each variant")
      ->check(kPositive)
      ->capture_default_str();
  // Every warp of an SM reads as many.
  app.add_option("--sm-rows", options.sm_rows, "Rows of 4 KB that an SM reads in a probe")
      ->check(multiple_of(32))
      ->capture_default_str();
  // As the benchmark's own kernels take them.
  app.add_option("--width", options.width, "Width D of a token")
      ->check(multiple_of(cuda::kVector))
      ->capture_default_str();
  app.add_option("--neurons", options.neurons, "Neurons H of the layer")
      ->check(multiple_of(cuda::kVector))
      ->capture_default_str();
}

}  // namespace twell::bench
