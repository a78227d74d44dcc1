#include "cli/bench_ffn_print.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/svg.h"
#include "cli/table.h"

namespace twell::cli {
namespace {

// Distinct values of a key, in the order of their first appearance.
template <class T>
std::vector<T> values_of(const nlohmann::json& results, const char* key) {
  std::vector<T> out;
  for (const auto& r : results) {
    const auto value = r[key].get<T>();
    if (std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  }
  return out;
}

const nlohmann::json& result_of(const nlohmann::json& results, std::int64_t tokens, double nnz) {
  for (const auto& r : results) {
    if (r["tokens"] == tokens && r["nnz_target"] == nnz) return r;
  }
  return results.front();  // the grid is complete
}

// Of --path auto, with a mark where it took the dense path.
std::string automatic_ratio(const nlohmann::json& r) {
  return format_ratio(r["auto_speedup"]) + (r["auto_path"] == "dense" ? " d" : "  ");
}

}  // namespace

void print_ffn_results(const BenchFfnOptions& o, const nlohmann::json& results) {
  std::vector<std::string> headings = {"tokens",  "nnz",  "dense",     "sparse",    "speedup",
                                       "(range)", "auto", "err dense", "err sparse"};
  if (!o.trace.empty()) headings.insert(headings.begin(), "layer");
  if (o.peaks) headings.push_back("floor");
  Table table(headings);
  for (const auto& r : results) {
    std::vector<std::string> cells = {fmt::format("{}", r["tokens"].get<std::int64_t>()),
                                      fmt::format("{:.1f}", r["nnz_mean"].get<double>()),
                                      format_us(r["dense_us"]),
                                      format_us(r["sparse_us"]),
                                      format_ratio(r["speedup"]),
                                      fmt::format("{:.2f}-{:.2f}", r["speedup_min"].get<double>(),
                                                  r["speedup_max"].get<double>()),
                                      automatic_ratio(r),
                                      fmt::format("{:.1e}", r["dense_max_rel_err"].get<double>()),
                                      fmt::format("{:.1e}", r["max_rel_err"].get<double>())};
    if (!o.trace.empty()) {
      cells.insert(cells.begin(), fmt::format("{}", r["trace_layer"].get<std::int64_t>()));
    }
    if (o.peaks) cells.push_back(format_us(r["sparse_floor_us"]));
    table.row(cells);
  }
  o.say("\n{}", table.to_string(o.colour()));
}

void print_train_results(const BenchFfnOptions& o, const nlohmann::json& results) {
  Table table({"tokens", "nnz", "dense", "sparse", "its forward", "speedup", "(range)", "kept",
               "err dense", "err sparse"});
  for (const auto& r : results) {
    table.row({fmt::format("{}", r["tokens"].get<std::int64_t>()),
               fmt::format("{:.1f}", r["nnz_mean"].get<double>()), format_us(r["dense_us"]),
               format_us(r["sparse_us"]), format_us(r["sparse_forward_us"]),
               format_ratio(r["speedup"]),
               fmt::format("{:.2f}-{:.2f}", r["speedup_min"].get<double>(),
                           r["speedup_max"].get<double>()),
               fmt::format("{:.1f} %", 100 * r["saved_bytes"].get<double>() /
                                           r["dense_saved_bytes"].get<double>()),
               fmt::format("{:.1e}", r["dense_rms_rel_err"].get<double>()),
               fmt::format("{:.1e}", r["rms_rel_err"].get<double>())});
  }
  o.say("\n{}", table.to_string(o.colour()));
}

void print_ffn_grid(const BenchFfnOptions& o, const nlohmann::json& results) {
  const auto tokens = values_of<std::int64_t>(results, "tokens");
  std::vector<std::string> headings = {"non-zeros", "density"};
  for (const std::int64_t m : tokens) headings.push_back(fmt::format("M = {}", m));
  Table ratios(headings), chosen(headings), times(headings);
  for (const double nnz : values_of<double>(results, "nnz_target")) {
    std::vector<std::string> ratio = {
        fmt::format("{:.0f}", nnz),
        fmt::format("{:.1f} %", 100 * nnz / static_cast<double>(o.neurons))};
    std::vector<std::string> time = ratio;
    std::vector<std::string> automatic = ratio;
    for (const std::int64_t m : tokens) {
      const auto& r = result_of(results, m, nnz);
      ratio.push_back(format_ratio(r["speedup"]));
      if (!o.train) automatic.push_back(automatic_ratio(r));
      time.push_back(format_us(r["dense_us"]) + " / " + format_us(r["sparse_us"]));
    }
    ratios.row(ratio);
    if (!o.train) chosen.row(automatic);
    times.row(time);
  }
  o.say("\nSpeedup over PyTorch's fastest dense variant\n{}", ratios.to_string(o.colour()));
  if (!o.train) {
    o.say("\nSpeedup of --path auto (d: it takes the dense path)\n{}",
          chosen.to_string(o.colour()));
  }
  o.say("\nTime of one call, dense / sparse\n{}", times.to_string(o.colour()));
}

void print_ffn_implementations(const BenchFfnOptions& o, const nlohmann::json& results) {
  for (const char* side : {"dense", "sparse"}) {
    const std::string key = std::string(side) + "_impl";
    for (const auto& impl : values_of<std::string>(results, key.c_str())) {
      nlohmann::json same = nlohmann::json::array();
      for (const auto& r : results) {
        if (r[key] == impl) same.push_back(r);
      }
      std::string list;
      for (const std::int64_t m : values_of<std::int64_t>(same, "tokens")) {
        list += fmt::format("{}{}", list.empty() ? "" : ", ", m);
      }
      // A layer describes itself as "sparse: relu, packed gate, ...".
      const std::string_view own = std::string_view(impl).starts_with("sparse: ")
                                       ? std::string_view(impl).substr(8)
                                       : std::string_view(impl);
      o.say_lines("{} at {} token{}: {}", side, list, list == "1" ? "" : "s", own);
    }
  }
}

std::string ffn_chart(const BenchFfnOptions& o, const nlohmann::json& results) {
  std::vector<std::pair<std::string, std::string>> charts;
  for (const std::int64_t m : values_of<std::int64_t>(results, "tokens")) {
    Series dense{"dense", {}}, sparse{"sparse", {}};
    for (const auto& r : results) {
      if (r["tokens"] != m) continue;
      const double density = 100 * r["nnz_mean"].get<double>() / static_cast<double>(o.neurons);
      dense.points.emplace_back(density, r["dense_us"].get<double>());
      sparse.points.emplace_back(density, r["sparse_us"].get<double>());
    }
    for (Series* s : {&dense, &sparse}) std::sort(s->points.begin(), s->points.end());
    ChartText text{"neurons that fire, %", "microseconds a call", true};
    text.log_x = true;
    charts.emplace_back(
        fmt::format("M = {}, D = {}, H = {}, {}", counted(m, "token"), o.width, o.neurons, o.dtype),
        line_chart({dense, sparse}, text));
  }
  return svg_page(charts);
}

}  // namespace twell::cli
