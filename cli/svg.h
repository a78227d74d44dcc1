// Small charts as inline SVG, for the report.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace twell::cli {

struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  // (x, y), x ascending
};
struct ChartText {
  std::string x, y;  // what the axes show
  bool log_y = false;
  bool log_x = false;  // zeros stand at the left end
};
// Lines over a common x axis; with more than one series, a legend.
std::string line_chart(const std::vector<Series>& series, const ChartText& text);

// Stands near the begin of every svg_page(): by it an earlier one is told from other files.
inline constexpr const char* kChartMark = "<!-- a chart of twell -->";

// Charts with a title each, one above the other: a complete file, with its style.
std::string svg_page(const std::vector<std::pair<std::string, std::string>>& charts);

struct Bar {
  std::string name;
  double value = 0;
  std::string label;  // printed at its end
  bool accent = false;
};
// Horizontal bars from zero.
std::string bar_chart_svg(const std::vector<Bar>& bars);

// &, <, > and quotes made safe.
std::string escape_html(const std::string& text);

}  // namespace twell::cli
