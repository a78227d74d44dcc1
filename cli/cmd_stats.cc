// twell stats: how sparse a model is on a text.
#include <numeric>
#include <optional>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "engine/ffn_statistics.h"
#include "engine/trace_recorder.h"
#include "files/file_error.h"

namespace twell::cli {
namespace {

struct StatsCommand : ModelOptions {
  std::string text;
  std::int64_t max_tokens = 16384;
  std::int64_t window = 0;
  bool chart = false;
  std::string trace;
};

// Means over positions 0, 1, 2-3, 4-7, ...: activity falls off exponentially from the first ones.
struct PositionBand {
  std::int64_t first, last;
  double nnz_mean;
};
std::vector<PositionBand> position_bands(const std::vector<lm::FfnTotals>& layers) {
  std::vector<PositionBand> bands;
  std::size_t longest = 0;
  for (const auto& layer : layers) longest = std::max(longest, layer.position_rows.size());
  for (std::size_t first = 0, width = 1; first < longest;) {
    const std::size_t last = std::min(longest, first + width) - 1;
    double rows = 0, nnz = 0;
    for (const auto& layer : layers) {
      for (std::size_t p = first; p <= last && p < layer.position_rows.size(); ++p) {
        rows += static_cast<double>(layer.position_rows[p]);
        nnz += static_cast<double>(layer.position_nnz[p]);
      }
    }
    bands.push_back({static_cast<std::int64_t>(first), static_cast<std::int64_t>(last),
                     rows > 0 ? nnz / rows : 0});
    first = last + 1;
    width = first;
  }
  return bands;
}

void run(StatsCommand& o) {
  if (!o.trace.empty() && o.path == "sparse") {
    io::fail_argument("--trace",
                      "needs the gate in memory, which --path sparse never has; leave --path out");
  }
  const auto model = o.open();
  const auto tokens = read_tokens(o.text, o.tokenizer(), o.max_tokens);
  const std::int64_t count = model->config().neurons_of_token();
  const auto neurons = static_cast<double>(count);
  Progress progress("counting non-zeros", static_cast<std::int64_t>(tokens.size()));
  lm::ScoreOptions score;
  score.on_progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
  if (o.window <= 0) o.window = lm::default_window(*model);
  std::optional<lm::TraceRecorder> recorder;
  if (!o.trace.empty()) score.observer = &recorder.emplace(*model, o.window);
  const lm::FfnStatistics statistics = lm::measure_ffn(*model, tokens, o.window, score);
  progress.finish();
  if (recorder) {
    recorder->trace().save(o.trace);
    o.say("Activity trace: {}, {}\n", o.trace,
          format_bytes(static_cast<double>(recorder->trace().bytes())));
  }

  Table table({"layer", "non-zeros", "of H", "largest", "dead neurons"});
  std::vector<double> means;
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t l = 0; l < statistics.layers().size(); ++l) {
    const lm::FfnTotals& layer = statistics.layers()[l];
    means.push_back(layer.nnz_mean());
    table.row({fmt::format("{}", l), fmt::format("{:.1f}", layer.nnz_mean()),
               fmt::format("{:.2f} %", 100 * layer.nnz_mean() / neurons),
               fmt::format("{}", layer.nnz_max),
               fmt::format("{:.1f} %", 100 * layer.dead_fraction())});
    layers.push_back({{"nnz_mean", layer.nnz_mean()},
                      {"nnz_max", layer.nnz_max},
                      {"dead_fraction", layer.dead_fraction()}});
  }
  o.say("{} tokens through {} layers of {} neurons ({})\n\n{}", tokens.size(), means.size(), count,
        io::name_of(model->config().hidden_act), table.to_string());
  o.say("\nMean of all layers: {:.1f} non-zeros, {:.2f} % of {}\n", statistics.nnz_mean(),
        100 * statistics.nnz_mean() / neurons, count);

  Table by_position({"position", "non-zeros"});
  nlohmann::json positions = nlohmann::json::array();
  for (const PositionBand& band : position_bands(statistics.layers())) {
    by_position.row({band.first == band.last ? fmt::format("{}", band.first)
                                             : fmt::format("{}-{}", band.first, band.last),
                     fmt::format("{:.1f}", band.nnz_mean)});
    positions.push_back({{"first", band.first}, {"last", band.last}, {"nnz_mean", band.nnz_mean}});
  }
  o.say("\n{}", by_position.to_string());
  if (o.chart) o.say("\nNon-zeros by layer\n{}", bar_chart(means));
  o.write({{"tokens", tokens.size()},
           {"neurons", count},
           {"nnz_mean", statistics.nnz_mean()},
           {"layers", layers},
           {"positions", positions}});
}

}  // namespace

void add_stats(CLI::App& app) {
  auto [c, o] = add_command<StatsCommand>(
      app, "stats",
      "Count a model's non-zeros by layer and position, and its dead neurons, on a text",
      "twell stats --model twell-demo/model --text README.md --chart", run);
  add_model_option(c, *o);
  c.add_option("--text", o->text, "Text file")->required()->type_name("FILE");
  c.add_option("--max-tokens", o->max_tokens, "Tokens of the text to use; 0: all")
      ->check(kZeroOrMore);
  c.add_option("--window", o->window, "Tokens of a sequence; 0: the model's context, at most 2048")
      ->check(kZeroOrMore);
  o->writes(c.add_option("--trace", o->trace,
                         "Also write which neurons fired for which token, for bench ffn --trace")
                ->type_name("FILE"),
            OutputKind::trace);
  c.add_flag("--chart", o->chart, "Also draw a bar per layer");
  add_path_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
}

}  // namespace twell::cli
