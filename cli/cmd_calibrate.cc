// twell calibrate: measures what --ffn auto chooses by, once per machine.
#include <torch/types.h>

#include <algorithm>
#include <memory>

#include "cli/command.h"
#include "cli/layer_timer.h"
#include "cli/measure.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "models/cost_model.h"
#include "twell/device.h"

namespace twell::cli {
namespace {

struct CalibrateCommand : CommonOptions {
  std::int64_t input = 2048;
  std::int64_t hidden = 5632;
  double seconds = 0.1;
  int repeats = 5;
};

// The density from which on --ffn auto takes the dense path.
std::string crossover(const lm::CostModel& cost, std::int64_t tokens, const lm::LayerSize& size) {
  for (double density = 0; density <= 1.0; density += 0.005) {
    if (cost.prefers_dense(tokens, density, size)) return fmt::format("{:.1f} %", 100 * density);
  }
  return "never";
}

void run(CalibrateCommand& o) {
  keep_freed_memory();
  lm::CostModel cost;
  cost.measured_on = lm::machine_key(default_cpu_tier(), o.threads);
  cost.tokens = {1, 8, 64, 512};
  cost.sparse.resize(cost.tokens.size());
  const lm::LayerSize size{o.hidden * o.input, true};
  const auto per_weight = [&](double us) { return us * 1e3 / static_cast<double>(size.weights); };
  const std::vector<double> asked = {0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0};
  o.say("{}: a gated layer, D = {}, H = {}, bf16\n", cost.measured_on, o.input, o.hidden);
  Progress progress("measuring", static_cast<std::int64_t>(asked.size() * cost.tokens.size()));
  std::int64_t done = 0;
  std::vector<std::vector<double>> dense(cost.tokens.size());
  for (const double density : asked) {
    SyntheticShape shape;
    shape.input = o.input;
    shape.hidden = o.hidden;
    shape.activity.mean_nnz = density * static_cast<double>(o.hidden);
    LayerTimer timer(shape);
    cost.densities.push_back(timer.density(cost.tokens.back()));
    for (std::size_t t = 0; t < cost.tokens.size(); ++t) {
      const LayerTimes times = timer.measure(cost.tokens[t], o.repeats, o.seconds);
      dense[t].push_back(per_weight(times.dense_us));
      cost.sparse[t].push_back(per_weight(times.sparse_us));
      progress.update(++done, fmt::format("{} tokens, {:.1f} %", cost.tokens[t], 100 * density));
    }
  }
  progress.finish();
  // The dense path does the same work at every density, and noise only ever adds time. At 8 tokens,
  // where weights come from what is left of L3, runs differ by 1.4.
  for (const auto& of_tokens : dense) {
    cost.dense.push_back(*std::min_element(of_tokens.begin(), of_tokens.end()));
  }
  // More non-zeros are never less work: of two that say otherwise the lower one is right.
  for (auto& row : cost.sparse) {
    for (std::size_t i = row.size() - 1; i-- > 0;) row[i] = std::min(row[i], row[i + 1]);
  }
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
  o.say("\nTime of a call by density of the gate\n{}", table.to_string());
  o.say("Written to {}: --ffn auto goes by it from now on\n", lm::calibration_file().string());
  o.write({{"hidden", o.input},
           {"ffn", o.hidden},
           {"key", cost.measured_on},
           {"file", lm::calibration_file().string()},
           {"tokens", cost.tokens},
           {"densities", cost.densities},
           {"dense_ns_per_weight", cost.dense},
           {"sparse_ns_per_weight", cost.sparse}});
}

}  // namespace

void add_calibrate(CLI::App& app) {
  auto o = std::make_shared<CalibrateCommand>();
  CLI::App& c = add_command<CalibrateCommand>(
      app, "calibrate",
      "Measure once what --ffn auto chooses by on this machine, and keep it in the cache folder",
      "twell calibrate", o, run);
  c.add_option("--hidden", o->input, "Width D of the layer measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c.add_option("--ffn", o->hidden, "Hidden units H of the layer measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  c.add_option("--repeats", o->repeats, "Timed runs of each path and density")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  c.add_option("--seconds", o->seconds, "Least length of a timed run")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
}

}  // namespace twell::cli
