#include "cli/svg.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace twell::cli {
namespace {

constexpr double kWidth = 640, kHeight = 260, kLeft = 64, kRight = 16, kTop = 16, kBottom = 44;
constexpr std::array kColours = {"#2563eb", "#dc2626", "#059669", "#d97706",
                                 "#7c3aed", "#0891b2", "#be185d", "#4d7c0f"};

// One axis: values to pixels, and round values for its ticks.
struct Axis {
  double low, high, from, to;
  bool log;

  double place(double value) const {
    const double l = log ? std::log10(low) : low, h = log ? std::log10(high) : high;
    const double v = log ? std::log10(std::max(value, low)) : value;
    return from + (to - from) * (v - l) / (h - l);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (log) {
      for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high;
           decade *= 10) {
        for (const double tick : {decade, 2 * decade, 5 * decade}) {
          if (tick >= low * 0.999 && tick <= high * 1.001) out.push_back(tick);
        }
      }
      return out;
    }
    const double rough = (high - low) / 5;
    const double decade = std::pow(10, std::floor(std::log10(rough)));
    const double part = rough / decade;  // 1 up to 10
    const double step = decade * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
    for (double v = std::ceil(low / step) * step; v <= high * (1 + 1e-9); v += step) {
      out.push_back(std::abs(v) < step * 1e-6 ? 0 : v);
    }
    return out;
  }
};

std::string number(double value) {
  if (std::abs(value) >= 10000) return fmt::format("{:.0f}k", value / 1000);
  return fmt::format("{:.4g}", value);
}

Axis make_axis(double low, double high, double from, double to, bool log) {
  if (log) low = std::max(low, high * 1e-6);
  if (!(high > low)) {
    high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
    if (log && low <= 0) low = high / 10;
  }
  return {low, high, from, to, log};
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&'   ? "&amp;"
           : c == '<' ? "&lt;"
           : c == '>' ? "&gt;"
           : c == '"' ? "&quot;"
                      : std::string(1, c);
  }
  return out;
}

std::string line_chart(const std::vector<Series>& series, const ChartText& text) {
  constexpr double kMost = std::numeric_limits<double>::max();
  double x0 = kMost, x1 = -kMost, y0 = kMost, y1 = -kMost, smallest = kMost;
  for (const Series& s : series) {
    for (const auto& [x, y] : s.points) {
      if (!std::isfinite(y) || (text.log_y && y <= 0)) continue;
      x0 = std::min(x0, x), x1 = std::max(x1, x), y0 = std::min(y0, y), y1 = std::max(y1, y);
      if (x > 0) smallest = std::min(smallest, x);
    }
  }
  if (x0 > x1) return "<p>(no data)</p>";
  const double margin = text.log_y ? 0 : (y1 - y0) * 0.05;
  if (text.log_x && x0 <= 0) x0 = smallest < kMost ? smallest / 2 : 1;
  const Axis x = make_axis(x0, x1, kLeft, kWidth - kRight, text.log_x);
  const Axis y = make_axis(y0 - margin, y1 + margin, kHeight - kBottom, kTop, text.log_y);

  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, kHeight);
  for (const double tick : y.ticks()) {
    const double at = y.place(tick);
    out += fmt::format(
        "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
        kLeft, kWidth - kRight, at, at, kLeft - 6, at + 4, number(tick));
  }
  for (const double tick : x.ticks()) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                       x.place(tick), kHeight - kBottom + 18, number(tick));
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 6, escape_html(text.x));
  out += fmt::format(
      "<text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kTop + kHeight - kBottom) / 2, escape_html(text.y));
  for (std::size_t i = 0; i < series.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string path;
    for (const auto& [px, py] : series[i].points) {
      if (!std::isfinite(py) || (text.log_y && py <= 0)) continue;
      path += fmt::format("{:.1f},{:.1f} ", x.place(px), y.place(py));
    }
    out +=
        fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" points=\"{}\"/>\n",
                    colour, path);
    if (series.size() > 1) {
      out +=
          fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\" style=\"fill:{}\">{}</text>\n",
                      kWidth - kRight - 4, kTop + 14 + 16 * static_cast<double>(i), colour,
                      escape_html(series[i].name));
    }
  }
  return out + "</svg>\n";
}

std::string svg_page(const std::vector<std::pair<std::string, std::string>>& charts) {
  constexpr double kTitle = 28;
  const double height = (kHeight + kTitle) * static_cast<double>(charts.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\">\n{}\n"
      "<style>text {{ font: 12px sans-serif; fill: #475569; }} .title {{ font-weight: bold; }} "
      ".grid {{ stroke: #e2e8f0; }}</style>\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n",
      kWidth, height, kWidth, kChartMark);
  double top = 0;
  for (const auto& [title, chart] : charts) {
    out += fmt::format("<text class=\"title\" x=\"{}\" y=\"{}\">{}</text>\n", kLeft, top + 20,
                       escape_html(title));
    // An inner picture needs a place and a size of its own.
    std::string inner = chart;
    constexpr std::string_view kOpening = "<svg ";
    if (inner.starts_with(kOpening)) {
      inner.insert(kOpening.size(), fmt::format("y=\"{}\" width=\"{}\" height=\"{}\" ",
                                                top + kTitle, kWidth, kHeight));
    }
    out += inner;
    top += kHeight + kTitle;
  }
  return out + "</svg>\n";
}

std::string bar_chart_svg(const std::vector<Bar>& bars) {
  constexpr double kRow = 26, kNames = 170, kLabels = 130;
  double largest = 0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  const double height = kRow * static_cast<double>(bars.size()) + 8;
  std::string out = fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\">\n", kWidth, height);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const double top = 4 + kRow * static_cast<double>(i);
    const double length =
        largest > 0 ? (kWidth - kNames - kLabels) * std::max(0.0, bar.value) / largest : 0;
    out += fmt::format(
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>"
        "<rect x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\" rx=\"2\" fill=\"{}\"/>"
        "<text x=\"{:.1f}\" y=\"{}\">{}</text>\n",
        kNames - 8, top + 17, escape_html(bar.name), kNames, top + 3, length, kRow - 8,
        bar.accent ? kColours[0] : "#94a3b8", kNames + length + 6, top + 17,
        escape_html(bar.label));
  }
  return out + "</svg>\n";
}

}  // namespace twell::cli
