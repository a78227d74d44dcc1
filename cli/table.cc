#include "cli/table.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace twell::cli {
namespace {

// Columns on a terminal: the code points of the UTF-8 text.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

bool is_number(const std::string& cell) {
  return cell.empty() || cell.find_first_of("0123456789+-") == 0 || cell == "nan" || cell == "inf";
}

}  // namespace

Table::Table(std::vector<std::string> headings) { rows_.push_back(std::move(headings)); }

void Table::row(std::vector<std::string> cells) {
  cells.resize(rows_.front().size());
  rows_.push_back(std::move(cells));
}

std::string Table::to_string() const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> width(columns, 0);
  std::vector<bool> right(columns, true);
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      width[c] = std::max(width[c], width_of(rows_[r][c]));
      if (r > 0 && !is_number(rows_[r][c])) right[c] = false;
    }
  }
  std::string out;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - width_of(rows_[r][c]), ' ');
      if (c > 0) line += "  ";
      line += right[c] ? padding + rows_[r][c] : rows_[r][c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r == 0) {
      std::size_t total = 2 * (columns - 1);
      for (const std::size_t w : width) total += w;
      out += std::string(total, '-') + "\n";
    }
  }
  return out;
}

std::string format_us(double microseconds) {
  if (!std::isfinite(microseconds)) return "-";
  if (microseconds < 1e3) return fmt::format("{:.1f} us", microseconds);
  if (microseconds < 1e6) return fmt::format("{:.2f} ms", microseconds / 1e3);
  return fmt::format("{:.2f} s", microseconds / 1e6);
}

std::string format_bytes(double bytes) {
  if (bytes < 1e3) return fmt::format("{:.0f} B", bytes);
  if (bytes < 1e6) return fmt::format("{:.1f} kB", bytes / 1e3);
  if (bytes < 1e9) return fmt::format("{:.1f} MB", bytes / 1e6);
  return fmt::format("{:.2f} GB", bytes / 1e9);
}

std::string format_ratio(double ratio) {
  return std::isfinite(ratio) ? fmt::format("{:.2f}x", ratio) : "-";
}

std::string bar_chart(const std::vector<double>& values, int width) {
  const double largest = values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  std::string out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double part = largest > 0 ? values[i] / largest : 0;
    const auto cells = static_cast<std::size_t>(std::lround(std::max(0.0, part) * width));
    out += fmt::format("{:>4} |{:<{}} {:.1f}\n", i, std::string(cells, '#'), width, values[i]);
  }
  return out;
}

}  // namespace twell::cli
