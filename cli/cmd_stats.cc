// twell stats: how sparse a model is on a text, and how popular its neurons are.
#include <algorithm>
#include <optional>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/popularity_print.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "convert/trace_recorder.h"
#include "engine/ffn_statistics.h"
#include "files/activity_trace.h"
#include "files/atomic_file.h"
#include "files/file_error.h"

namespace twell::cli {
namespace {

constexpr std::int64_t kTokens = 16384;  // of a text
const std::vector<std::int64_t> kWindows = {16, 32, 64};

struct StatsCommand : ModelOptions {
  std::string text, from_trace;
  std::optional<std::int64_t> max_tokens, layer;
  std::int64_t window = 0;
  bool chart = false, popularity = false;
  std::string trace, svg;
  std::vector<std::int64_t> unions;
  double hot = lm::kHotShare;
  std::uint64_t seed = 1;
  std::vector<const CLI::Option*> of_popularity;  // each of which asks for it

  bool wants_popularity() const {
    return std::ranges::any_of(of_popularity,
                               [](const auto* option) { return option->count() > 0; });
  }
};

// A layer, and what is known of it.
struct LayerTotals {
  // A trace's header may claim 2^24 neurons, so that their counts are not kept.
  LayerTotals(std::int64_t layer, lm::FfnTotals counted)
      : number(layer), dead_fraction(counted.dead_fraction()), totals(std::move(counted)) {
    totals.neuron_nnz = {};
  }
  std::int64_t number;
  double dead_fraction;
  lm::FfnTotals totals;
};

struct Found {
  std::string of;  // "text.trc", or the model's activation
  std::int64_t neurons = 0;
  std::size_t tokens = 0;
  std::vector<LayerTotals> layers;
  std::optional<PopularityReport> popularity;
};

// Means over positions 0, 1, 2-3, 4-7, ...: activity falls off exponentially from the first ones.
struct PositionBand {
  std::int64_t first, last;
  double nnz_mean;
};
std::vector<PositionBand> position_bands(const std::vector<LayerTotals>& layers) {
  std::vector<PositionBand> bands;
  std::size_t longest = 0;
  for (const auto& layer : layers) {
    longest = std::max(longest, layer.totals.position_rows.size());
  }
  for (std::size_t first = 0, width = 1; first < longest;) {
    const std::size_t last = std::min(longest, first + width) - 1;
    double rows = 0, nnz = 0;
    for (const auto& [number, dead_fraction, layer] : layers) {
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

// The totals that a model would have counted while it ran windows of `window` tokens.
lm::FfnTotals totals_of(const io::ActivityRows& rows, std::uint32_t neurons, std::uint32_t window) {
  FfnCounts counts;
  counts.neuron_nnz.resize(neurons);
  std::vector<std::int64_t> positions;
  for (std::size_t t = 0; t < rows.rows(); ++t) {
    counts.row_nnz.push_back(static_cast<std::int32_t>(rows.row(t).size()));
    for (const std::uint32_t neuron : rows.row(t)) ++counts.neuron_nnz[neuron];
    if (window > 0) positions.push_back(static_cast<std::int64_t>(t % window));
  }
  lm::FfnTotals totals;
  totals.add(counts, positions);
  return totals;
}

// First and last layer to tell of.
std::pair<std::int64_t, std::int64_t> layers_to_tell(const StatsCommand& o, std::int64_t layers) {
  if (o.layer.value_or(0) >= layers) {
    io::fail_argument("--layer", "there are {} layers, the last one is {}; asked for {}", layers,
                      layers - 1, *o.layer);
  }
  return {o.layer.value_or(0), o.layer.value_or(layers - 1)};
}

// Windows that were asked for have to fit into the text; of those that nobody asked for, the ones
// that do are taken.
PopularityOptions popularity_options(const StatsCommand& o, std::size_t tokens) {
  PopularityOptions options{o.hot, {}, o.seed};
  for (const std::int64_t window : o.unions.empty() ? kWindows : o.unions) {
    if (static_cast<std::size_t>(window) <= tokens) {
      options.windows.push_back(static_cast<std::size_t>(window));
    } else if (!o.unions.empty()) {
      io::fail_argument("--unions", "a window of {} tokens is longer than the text, which has {}",
                        window, tokens);
    }
  }
  return options;
}

Found read_trace(const StatsCommand& o) {
  const io::ActivityTrace trace(o.from_trace);
  const io::ActivityTraceHeader& header = trace.header();
  if (header.tokens == 0) io::fail_file(o.from_trace, "holds no tokens; record some text");
  const auto [first, last] = layers_to_tell(o, header.layers);
  const auto most = static_cast<std::uint64_t>(o.max_tokens.value_or(0));
  const std::uint64_t tokens = most == 0 ? header.tokens : std::min(most, header.tokens);
  Found found{o.from_trace, header.neurons, tokens, {}, {}};
  found.popularity.emplace(popularity_options(o, tokens), tokens, trace.token_ids());
  Progress progress("reading the trace", (last - first + 1) * found.popularity->pieces());
  std::int64_t done = 0;
  for (std::int64_t l = first; l <= last; ++l) {
    const io::ActivityRows rows = trace.read(static_cast<std::uint32_t>(l), tokens);
    found.layers.emplace_back(l, totals_of(rows, header.neurons, header.window));
    found.popularity->add(l, rows, header.neurons, [&] { progress.update(done++); });
  }
  progress.finish();
  return found;
}

Found run_model(StatsCommand& o) {
  const auto model = o.open();
  const io::HiddenAct act = model->config().hidden_act;
  if (o.wants_popularity() && !io::yields_zeros(act)) {
    io::fail_unsupported("--popularity",
                         "every neuron of a model with {} fires for every token; expected one with "
                         "one of {}",
                         io::name_of(act), io::sparse_names());
  }
  const auto tokens = read_tokens(o.text, o.tokenizer(), o.max_tokens.value_or(kTokens));
  const auto [first, last] = layers_to_tell(o, model->layers());
  Found found{
      std::string(io::name_of(act)), model->config().neurons_of_token(), tokens.size(), {}, {}};
  const std::vector<std::uint32_t> ids(tokens.begin(), tokens.end());
  if (o.wants_popularity()) {
    found.popularity.emplace(popularity_options(o, tokens.size()), tokens.size(), ids);
  }
  Progress progress("counting non-zeros", static_cast<std::int64_t>(tokens.size()));
  lm::ScoreOptions score;
  score.on_progress = [&](std::int64_t done, std::int64_t) { progress.update(done); };
  if (o.window <= 0) o.window = lm::default_window(*model);
  std::optional<lm::TraceRecorder> recorder;
  if (found.popularity || !o.trace.empty()) {
    score.observer = &recorder.emplace(*model, o.window);
  }
  const lm::FfnStatistics statistics = lm::measure_ffn(*model, tokens, o.window, score);
  progress.finish();
  for (std::int64_t l = first; l <= last; ++l) {
    found.layers.emplace_back(l, statistics.layers()[static_cast<std::size_t>(l)]);
  }
  if (recorder) recorder->trace().set_token_ids(ids);
  if (!o.trace.empty()) {
    recorder->trace().save(o.trace);
    o.say("Activity trace: {}, {}\n", o.trace,
          format_bytes(static_cast<double>(recorder->trace().bytes())));
  }
  if (found.popularity) {
    Progress counting("counting unions", (last - first + 1) * found.popularity->pieces());
    std::int64_t done = 0;
    for (std::int64_t l = first; l <= last; ++l) {
      const io::ActivityRows rows = recorder->trace().read(static_cast<std::uint32_t>(l));
      found.popularity->add(l, rows, static_cast<std::uint32_t>(found.neurons),
                            [&] { counting.update(done++); });
    }
    counting.finish();
  }
  return found;
}

void check_use(const StatsCommand& o) {
  if (!o.from_trace.empty()) return;
  if (o.model.empty()) throw CLI::RequiredError("--model (or --from-trace)");
  if (o.text.empty()) throw CLI::RequiredError("--text");
  if (o.path != "sparse") return;
  const char* asked = !o.trace.empty()       ? "--trace"
                      : o.wants_popularity() ? "--popularity"
                                             : nullptr;
  if (asked != nullptr) {
    io::fail_argument(asked,
                      "needs the gate in memory, which --path sparse never has; leave --path out");
  }
}

void run(StatsCommand& o) {
  check_use(o);
  const Found found = o.from_trace.empty() ? run_model(o) : read_trace(o);
  const auto neurons = static_cast<double>(found.neurons);

  Table table({"layer", "non-zeros", "of H", "largest", "dead neurons"});
  std::vector<double> means;
  double nnz = 0, rows = 0;
  nlohmann::json layers = nlohmann::json::array();
  for (std::size_t i = 0; i < found.layers.size(); ++i) {
    const auto& [number, dead_fraction, layer] = found.layers[i];
    means.push_back(layer.nnz_mean());
    nnz += static_cast<double>(layer.nnz);
    rows += static_cast<double>(layer.rows);
    table.row({fmt::format("{}", number), fmt::format("{:.1f}", layer.nnz_mean()),
               fmt::format("{:.2f} %", 100 * layer.nnz_mean() / neurons),
               fmt::format("{}", layer.nnz_max), fmt::format("{:.1f} %", 100 * dead_fraction)});
    layers.push_back({{"layer", number},
                      {"nnz_mean", layer.nnz_mean()},
                      {"nnz_max", layer.nnz_max},
                      {"dead_fraction", dead_fraction}});
    if (found.popularity) layers.back().update(found.popularity->json_of(i));
  }
  const double nnz_mean = rows > 0 ? nnz / rows : 0;
  o.say("{} through {} of {} neurons ({})\n\n{}",
        counted(static_cast<std::int64_t>(found.tokens), "token"),
        counted(std::ssize(means), "layer"), found.neurons, found.of, table.to_string(o.colour()));
  if (means.size() > 1) {
    o.say("\nMean of all layers: {:.1f} non-zeros, {:.2f} % of {}\n", nnz_mean,
          100 * nnz_mean / neurons, found.neurons);
  }

  Table by_position({"position", "non-zeros"});
  nlohmann::json positions = nlohmann::json::array();
  for (const PositionBand& band : position_bands(found.layers)) {
    by_position.row({band.first == band.last ? fmt::format("{}", band.first)
                                             : fmt::format("{}-{}", band.first, band.last),
                     fmt::format("{:.1f}", band.nnz_mean)});
    positions.push_back({{"first", band.first}, {"last", band.last}, {"nnz_mean", band.nnz_mean}});
  }
  if (!positions.empty()) o.say("\n{}", by_position.to_string(o.colour()));
  if (o.chart) o.say("\nNon-zeros by layer\n{}", bar_chart(means));
  nlohmann::json out = {{"tokens", found.tokens},
                        {"neurons", found.neurons},
                        {"nnz_mean", nnz_mean},
                        {"layers", layers},
                        {"positions", positions}};
  if (found.popularity) {
    o.say("\n{}", found.popularity->tables(o.colour()));
    out["popularity"] = found.popularity->json();
    if (!o.svg.empty()) {
      io::write_file_atomically(o.svg, found.popularity->chart());
      o.say("Chart: {}\n", o.svg);
    }
  }
  o.write(out);
}

}  // namespace

void add_stats(CLI::App& app) {
  auto [c, o] = add_command<StatsCommand>(
      app, "stats",
      "Count a model's non-zeros and dead neurons on a text, and how popular its neurons are; "
      "twell.report does so in Python, for any model",
      "twell stats --model twell-demo/model --text README.md --popularity", run);
  CLI::Option* model = add_model_option(c, *o)->required(false);
  CLI::Option* text = c.add_option("--text", o->text, "Text file")->type_name("FILE");
  CLI::Option* from = c.add_option("--from-trace", o->from_trace,
                                   "In place of --model and --text: count what --trace recorded")
                          ->type_name("FILE")
                          ->excludes(model)
                          ->excludes(text);
  c.add_option(
       "--max-tokens", o->max_tokens,
       fmt::format("Tokens of the text to use; 0: all (default: {}, of a trace all)", kTokens))
      ->check(kZeroOrMore)
      ->default_str("");
  c.add_option("--window", o->window, "Tokens of a sequence; 0: the model's context, at most 2048")
      ->check(kZeroOrMore)
      ->excludes(from);
  o->writes(c.add_option("--trace", o->trace,
                         "Also write which neurons fired for which token, for --from-trace and for "
                         "bench ffn --trace")
                ->type_name("FILE")
                ->excludes(from),
            OutputKind::trace);
  c.add_option("--layer", o->layer, "Tell of this layer alone")->check(kZeroOrMore);
  c.add_flag("--chart", o->chart, "Also draw a bar per layer");
  o->of_popularity = {
      c.add_flag("--popularity", o->popularity,
                 "Also tell how popular neurons are, and how many of them windows of tokens fire "
                 "together. --from-trace, --unions, --hot, --seed and --svg imply it"),
      from,
      c.add_option("--unions", o->unions, "Tokens of the windows, a list (default: 16,32,64)")
          ->delimiter(',')
          ->check(kCounts)
          ->default_str(""),
      c.add_option("--hot", o->hot, "Share of the tokens from which on a neuron is hot")
          ->check(in_range(0, 1)),
      add_seed_option(c, o->seed, "Seed of the random order of tokens"),
      c.add_option("--svg", o->svg, "Also draw how often neurons fire, the most popular first")
          ->type_name("FILE.svg")};
  o->writes(c.get_option("--svg"), OutputKind::chart);
  add_path_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
}

}  // namespace twell::cli
