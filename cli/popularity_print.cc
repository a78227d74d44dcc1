#include "cli/popularity_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cli/svg.h"
#include "cli/table.h"

namespace twell::cli {
namespace {

constexpr double kTops[] = {0.01, 0.05, 0.1, 0.2};  // of the neurons, the most popular first
// Below this number of firings a neuron's rate is off by a third or more (1 / √10).
constexpr double kEnoughFirings = 10;

// Of the values that are numbers; NaN where there are none.
template <class Of, class Items>
double mean(const Items& items, Of of) {
  double sum = 0, count = 0;
  for (const auto& item : items) {
    const double value = of(item);
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

std::string percent(double share, int digits = 1) {
  return fmt::format("{:.{}f} %", 100 * share, digits);
}

std::string times(double ratio) { return std::isnan(ratio) ? "-" : fmt::format("{:.2f}", ratio); }

nlohmann::json top_json(const std::function<double(double)>& top) {
  nlohmann::json out = nlohmann::json::array();
  for (const double share : kTops) out.push_back({{"neurons", share}, {"firings", top(share)}});
  return out;
}

// About equally far from one another on a logarithmic axis.
std::vector<std::size_t> ranks(std::size_t neurons) {
  std::vector<std::size_t> out;
  for (double rank = 1; rank <= static_cast<double>(neurons);
       rank = std::max(rank + 1, rank * 1.04))
    out.push_back(static_cast<std::size_t>(rank));
  return out;
}

}  // namespace

PopularityReport::PopularityReport(PopularityOptions options, std::size_t tokens,
                                   const std::vector<std::uint32_t>& token_ids)
    : options_(std::move(options)) {
  orders_.emplace_back("text", lm::text_order(tokens));
  if (!token_ids.empty()) {
    orders_.emplace_back("token_id", lm::order_by_id(std::span(token_ids).subspan(0, tokens)));
  }
  orders_.emplace_back("random", lm::random_order(tokens, options_.seed));
}

void PopularityReport::add(std::int64_t layer, const io::ActivityRows& rows, std::uint32_t neurons,
                           const std::function<void()>& tick) {
  Layer& added = layers_.emplace_back(
      Layer{layer, neurons, lm::NeuronFirings(rows, neurons, options_.hot_share), {}});
  for (const std::size_t window : options_.windows) {
    for (const auto& [name, order] : orders_) {
      tick();
      added.unions.push_back({window, name, lm::window_union(rows, added.firings, order, window)});
    }
  }
}

std::int64_t PopularityReport::pieces() const {
  return static_cast<std::int64_t>(options_.windows.size() * orders_.size());
}

std::string PopularityReport::tables(bool colour) const {
  return popularity_table(colour) + (options_.windows.empty() ? "" : "\n" + union_table(colour));
}

std::string PopularityReport::popularity_table(bool colour) const {
  std::vector<std::string> headings = {"layer", "hot", "of firings", "cold a token"};
  for (const double top : kTops) headings.push_back(fmt::format("top {:g} %", 100 * top));
  Table table(headings);
  const auto row = [&](const std::string& name, const auto& layers) {
    const auto of = [&](auto value) {
      return mean(layers, [&](const Layer* l) { return value(l->firings); });
    };
    std::vector<std::string> cells = {
        name, percent(of([](auto& f) { return f.hot(); })),
        percent(of([](auto& f) { return f.hot_firings(); })),
        fmt::format("{:.2f}", of([](auto& f) { return f.cold_nnz(); }))};
    for (const double top : kTops) {
      cells.push_back(percent(of([&](auto& f) { return f.top(top); })));
    }
    table.row(cells);
  };
  std::vector<const Layer*> all;
  for (const Layer& layer : layers_) {
    row(fmt::format("{}", layer.number), std::vector<const Layer*>{&layer});
    all.push_back(&layer);
  }
  if (all.size() > 1) row("mean", all);
  std::string out = fmt::format(
      "Popularity. Neurons that fire for {:g} % of the tokens or more are hot, the others are "
      "cold.\n"
      "of firings: the share of them that hot neurons make; cold a token: firings of cold "
      "neurons;\n"
      "top: the share of the firings that the most popular neurons make.\n\n{}",
      100 * options_.hot_share, table.to_string(colour));
  const double tokens = static_cast<double>(orders_.front().second.size());
  if (tokens * options_.hot_share < kEnoughFirings && options_.hot_share > 0) {
    out += fmt::format(
        "With {:.0f} tokens chance decides which neurons are hot; take {:.0f} or more.\n", tokens,
        std::ceil(kEnoughFirings / options_.hot_share));
  }
  return out;
}

std::vector<std::string> PopularityReport::union_cells(const std::vector<const Layer*>& layers,
                                                       std::size_t window) const {
  const auto first =
      static_cast<std::size_t>(std::find(options_.windows.begin(), options_.windows.end(), window) -
                               options_.windows.begin());
  std::vector<std::string> cells;
  for (const int column : {0, 1, 2}) {
    for (std::size_t order = 0; order < orders_.size(); ++order) {
      const double value = mean(layers, [&](const Layer* layer) {
        const lm::WindowUnion& u = layer->unions[first * orders_.size() + order].found;
        return column == 0 ? u.neurons / layer->neurons : column == 1 ? u.sharing : u.cold_sharing;
      });
      cells.push_back(column == 0 ? percent(value) : times(value));
    }
  }
  return cells;
}

std::string PopularityReport::union_table(bool colour) const {
  std::vector<std::string> headings = {"layer", "window"};
  for (const std::string column : {"union", "sharing", "cold"}) {
    headings.push_back(column);
    if (orders_.size() > 2) headings.emplace_back("by id");
    headings.emplace_back("random");
  }
  Table table(headings);
  const auto rows = [&](const std::string& name, const std::vector<const Layer*>& layers) {
    for (const std::size_t window : options_.windows) {
      std::vector<std::string> cells = {name, fmt::format("{}", window)};
      for (const std::string& cell : union_cells(layers, window)) cells.push_back(cell);
      table.row(cells);
    }
  };
  std::vector<const Layer*> all;
  for (const Layer& layer : layers_) {
    rows(fmt::format("{}", layer.number), {&layer});
    all.push_back(&layer);
  }
  if (all.size() > 1) rows("mean", all);
  const bool by_id = orders_.size() > 2;
  std::string out = fmt::format(
      "Windows of tokens. union: neurons, of H, that fire for any token of the window; sharing:\n"
      "firings over union, for how many of its tokens such a neuron fires; cold: the same of cold\n"
      "neurons. Windows are those of the text, then {}of tokens in random order.\n\n{}",
      by_id ? "of tokens sorted by id, then " : "", table.to_string(colour));
  if (!by_id) {
    out += "The trace has no token ids to sort by: an earlier twell wrote it. Record it again.\n";
  }
  return out;
}

nlohmann::json PopularityReport::json_of(std::size_t index) const {
  const Layer& layer = layers_[index];
  nlohmann::json unions = nlohmann::json::array();
  for (const Union& u : layer.unions) {
    unions.push_back({{"window", u.window},
                      {"order", u.order},
                      {"windows", u.found.windows},
                      {"union_fraction", u.found.neurons / layer.neurons},
                      {"cold_union_fraction", u.found.cold_neurons / layer.neurons},
                      {"sharing", u.found.sharing},
                      {"cold_sharing", u.found.cold_sharing}});
  }
  const lm::NeuronFirings& f = layer.firings;
  return {{"hot_fraction", f.hot()},
          {"hot_firings_fraction", f.hot_firings()},
          {"cold_nnz_mean", f.cold_nnz()},
          {"top", top_json([&](double share) { return f.top(share); })},
          {"unions", unions}};
}

nlohmann::json PopularityReport::json() const {
  return {
      {"hot_share", options_.hot_share}, {"windows", options_.windows}, {"seed", options_.seed}};
}

std::string PopularityReport::chart() const {
  constexpr std::size_t kLines = 7;  // of eight colours; one is the threshold's
  std::vector<std::pair<std::string, std::string>> charts;
  for (std::size_t first = 0; first < layers_.size(); first += kLines) {
    const std::size_t end = std::min(first + kLines, layers_.size());
    std::vector<Series> lines;
    std::uint32_t neurons = 1;
    for (std::size_t i = first; i < end; ++i) {
      const Layer& layer = layers_[i];
      neurons = std::max(neurons, layer.neurons);
      Series line{fmt::format("layer {}", layer.number), {}};
      const double tokens = std::max<double>(1, static_cast<double>(layer.firings.tokens()));
      for (const std::size_t rank : ranks(layer.firings.sorted().size())) {
        line.points.emplace_back(
            100 * static_cast<double>(rank) / layer.neurons,
            100 * static_cast<double>(layer.firings.sorted()[rank - 1]) / tokens);
      }
      lines.push_back(line);
    }
    lines.push_back(
        {fmt::format("hot: {:g} %", 100 * options_.hot_share),
         {{100.0 / neurons, 100 * options_.hot_share}, {100, 100 * options_.hot_share}}});
    ChartText text{"neurons, the most popular first, %", "tokens that fire a neuron, %", true,
                   true};
    charts.emplace_back(first + 1 == end ? fmt::format("Layer {}", layers_[first].number)
                                         : fmt::format("Layers {} to {}", layers_[first].number,
                                                       layers_[end - 1].number),
                        line_chart(lines, text));
  }
  return svg_page(charts);
}

}  // namespace twell::cli
