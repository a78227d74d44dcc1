// Progress of long work on standard error: a bar that redraws itself on a terminal, otherwise a
// plain line every few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace twell::cli {

class Progress {
 public:
  struct Options {
    std::FILE* out = stderr;
    double line_seconds = 5.0;  // between plain lines
    double bar_seconds = 0.1;   // between redraws
    int terminal = -1;          // 1: a terminal of `width` columns, 0: none, -1: ask `out`
    int width = 0;              // 0: ask
  };

  // `total` is in steps of any kind; 0 where it is not known.
  Progress(std::string label, std::int64_t total, const Options& options);
  Progress(std::string label, std::int64_t total);
  ~Progress();  // clears the bar of unfinished work
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows `done` of `total`, with a few words. Throws measure::Interrupted after Ctrl-C.
  void update(std::int64_t done, std::string_view note = {});
  // One last line: label, time it took, note. Work that took under a second on no terminal leaves
  // no line.
  void finish(std::string_view note = {});
  // Takes the bar away, so that something else may be printed; the next update() draws it again.
  void clear();

  double seconds() const;

 private:
  void draw_bar(std::int64_t done, std::string_view note);
  void print_line(std::int64_t done, std::string_view note);

  std::string label_;
  std::int64_t total_;
  Options options_;
  bool terminal_;
  bool finished_ = false;
  bool bar_shown_ = false;
  std::chrono::steady_clock::time_point begin_, last_;
};

// "42 s", "3 min 05 s", "1 h 02 min".
std::string format_duration(double seconds);

}  // namespace twell::cli
