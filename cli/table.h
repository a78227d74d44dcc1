// Tables, paragraphs and bar charts of plain text, of lines that fit into kColumns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace twell::cli {

// Of a line.
inline constexpr std::size_t kColumns = 100;

// Columns as wide as their widest cell; numbers (and headings above them) to the right. Those that
// do not fit into a line go on below, behind the first column again.
class Table {
 public:
  explicit Table(std::vector<std::string> headings);
  // As many cells as there are headings.
  void row(std::vector<std::string> cells);
  // Every line ends with a newline. In colour: headings bold, for a terminal.
  std::string to_string(bool colour = false) const;

 private:
  std::string part(const std::vector<std::size_t>& columns, bool colour) const;

  std::vector<std::vector<std::string>> rows_;  // the headings first
};

// Broken between words where a line is full. It begins at a column, and lines after the first one
// begin with `indent` spaces.
std::string wrapped(std::string_view text, std::size_t indent = 0, std::size_t column = 0);

// A help text whose long lines go on below where their descriptions begin.
std::string help_in_columns(std::string_view help);

// "3.2 ms", "912 us", "1.4 s" for a time in microseconds.
std::string format_us(double microseconds);
// "1.5 GB", "12.0 MB", "640 B"; powers of 1000.
std::string format_bytes(double bytes);
// "32 KiB", "1.5 MiB"; powers of 1024, as caches have them.
std::string format_binary(std::int64_t bytes);
// "1 layer", "2 layers".
std::string counted(std::int64_t count, std::string_view what);
// Up to three digits after the point: "2.31x".
std::string format_ratio(double ratio);

// One horizontal bar per value, scaled to the largest: "  3 |########      12.5".
std::string bar_chart(const std::vector<double>& values, int width = 50);

}  // namespace twell::cli
