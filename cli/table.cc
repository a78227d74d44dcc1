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

std::size_t column_width(const std::vector<std::vector<std::string>>& rows, std::size_t column) {
  std::size_t width = 0;
  for (const auto& row : rows) width = std::max(width, width_of(row[column]));
  return width;
}

}  // namespace

Table::Table(std::vector<std::string> headings) { rows_.push_back(std::move(headings)); }

void Table::row(std::vector<std::string> cells) {
  cells.resize(rows_.front().size());
  rows_.push_back(std::move(cells));
}

std::string Table::to_string(bool colour) const {
  std::string out;
  std::vector<std::size_t> columns;
  std::size_t total = 0;
  for (std::size_t c = 0; c < rows_.front().size(); ++c) {
    const std::size_t width = column_width(rows_, c);
    if (columns.size() > 1 && total + 2 + width > kColumns) {
      out += part(columns, colour) + "\n";
      columns.resize(1);
      total = column_width(rows_, 0);
    }
    total += width + (columns.empty() ? 0 : 2);
    columns.push_back(c);
  }
  return out + part(columns, colour);
}

std::string Table::part(const std::vector<std::size_t>& columns, bool colour) const {
  std::string out;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (const std::size_t c : columns) {
      const bool right = std::all_of(rows_.begin() + 1, rows_.end(),
                                     [&](const auto& row) { return is_number(row[c]); });
      const std::string padding(column_width(rows_, c) - width_of(rows_[r][c]), ' ');
      if (c != columns.front()) line += "  ";
      line += right ? padding + rows_[r][c] : rows_[r][c] + padding;
    }
    const std::size_t total = width_of(line);
    line.erase(line.find_last_not_of(' ') + 1);
    out += (r == 0 && colour ? "\x1b[1m" + line + "\x1b[0m" : line) + "\n";
    if (r == 0) out += std::string(total, '-') + "\n";
  }
  return out;
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t column) {
  std::string out;
  while (!text.empty()) {
    const std::string word(text.substr(0, text.find(' ')));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (!out.empty() && column + 1 + width_of(word) > kColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!out.empty()) {
      out += ' ';
      ++column;
    }
    out += word;
    column += width_of(word);
  }
  return out;
}

std::string help_in_columns(std::string_view help) {
  std::string out;
  while (!help.empty()) {
    const std::string_view line = help.substr(0, help.find('\n'));
    help.remove_prefix(std::min(line.size() + 1, help.size()));
    // Behind the name: "  explain      Show how".
    const auto name = std::min(line.find_first_not_of(' '), line.size());
    const auto gap = std::min(line.find("  ", name), line.size());
    const auto text = line.find_first_not_of(' ', gap);
    const auto begin = name == 0 || text == line.npos ? name : text;
    out += std::string(line.substr(0, begin)) + wrapped(line.substr(begin), begin, begin) + "\n";
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

std::string format_binary(std::int64_t bytes) {
  const auto size = static_cast<double>(bytes);
  if (bytes < 1 << 10) return fmt::format("{} B", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.4g} KiB", size / 0x1p10);
  if (bytes < 1 << 30) return fmt::format("{:.4g} MiB", size / 0x1p20);
  return fmt::format("{:.4g} GiB", size / 0x1p30);
}

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
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
