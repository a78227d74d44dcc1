// Tables and bar charts of plain text.
#pragma once

#include <string>
#include <vector>

namespace twell::cli {

// Columns as wide as their widest cell; numbers (and headings above them) to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> headings);
  // As many cells as there are headings.
  void row(std::vector<std::string> cells);
  // Every line ends with a newline.
  std::string to_string() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the headings first
};

// "3.2 ms", "912 us", "1.4 s" for a time in microseconds.
std::string format_us(double microseconds);
// "1.5 GB", "12.0 MB", "640 B"; powers of 1000.
std::string format_bytes(double bytes);
// Up to three digits after the point: "2.31x".
std::string format_ratio(double ratio);

// One horizontal bar per value, scaled to the largest: "  3 |########      12.5".
std::string bar_chart(const std::vector<double>& values, int width = 50);

}  // namespace twell::cli
