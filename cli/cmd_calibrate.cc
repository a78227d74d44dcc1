// twell calibrate: measures what --path auto chooses by, once per machine.

#include "cli/command.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "device/calibration.h"
#include "measure/calibrate.h"
#include "measure/timing.h"
#include "twell/device.h"

namespace twell::cli {
namespace {

struct CalibrateCommand : CommonOptions {
  FfnShape shape = {2048, 5632};
  lm::MeasureOptions measure = {.repeats = 5, .min_seconds = 0.1};
};

// The density from which on --path auto takes the dense path.
std::string crossover(const CostModel& cost, std::int64_t tokens, const FfnShape& size) {
  for (double density = 0; density <= 1.0; density += 0.005) {
    if (cost.prefers_dense(tokens, density, size)) return fmt::format("{:.1f} %", 100 * density);
  }
  return "never";
}

void run(CalibrateCommand& o) {
  lm::check_calibration_file();
  lm::keep_freed_memory();
  const FfnShape& size = o.shape;
  const std::string key = lm::machine_key(default_cpu_tier(), o.threads);
  o.say("{}: a gated layer, D = {}, H = {}, bf16\n", key, size.width, size.neurons);
  Progress progress("measuring", lm::calibration_steps());
  std::int64_t done = 0;
  CostModel cost = lm::calibrate(size, o.measure,
                                 [&](const std::string& what) { progress.update(++done, what); });
  progress.finish();
  cost.measured_on = key;
  lm::save_cost_model(cost);

  std::vector<std::string> headings = {"tokens", "dense"};
  for (const double d : cost.densities) headings.push_back(fmt::format("{:.1f} %", 100 * d));
  headings.emplace_back("dense from");
  Table table(headings);
  for (std::size_t t = 0; t < cost.tokens.size(); ++t) {
    const std::int64_t m = cost.tokens[t];
    std::vector<std::string> cells = {fmt::format("{}", m), format_us(cost.dense_us(m, size))};
    for (const double d : cost.densities) cells.push_back(format_us(cost.sparse_us(m, d, size)));
    cells.push_back(crossover(cost, m, size));
    table.row(cells);
  }
  o.say("\nTime of a call by density of the gate\n{}", table.to_string(o.colour()));
  o.say("Written to {}: --path auto goes by it from now on\n", lm::calibration_file().string());
  o.write({{"width", size.width},
           {"neurons", size.neurons},
           {"key", cost.measured_on},
           {"file", lm::calibration_file().string()},
           {"tokens", cost.tokens},
           {"densities", cost.densities},
           {"dense_ns_per_weight", cost.dense},
           {"sparse_ns_per_weight", cost.sparse}});
}

}  // namespace

void add_calibrate(CLI::App& app) {
  auto [c, o] = add_command<CalibrateCommand>(
      app, "calibrate",
      "Time dense and sparse layers once on this machine, and keep the times for --path auto",
      "twell calibrate", run);
  c.add_option("--width", o->shape.width, "Width D of a token")->check(kPositive);
  c.add_option("--neurons", o->shape.neurons, "Neurons H of the layer")->check(kPositive);
  c.add_option("--repeats", o->measure.repeats, "Timed runs of each path and density")
      ->check(in_range(1, 1000));
  c.add_option("--seconds", o->measure.min_seconds, "Shortest timed run, in seconds")
      ->check(in_range(0.001, 60.0));
}

}  // namespace twell::cli
