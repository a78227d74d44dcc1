// Progress of long work on standard error: a bar that redraws itself on a terminal, otherwise plain
// lines, after some seconds and then ever more rarely. Work that has no steps to tell shows the
// time that it takes.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace twell::cli {

class Progress {
 public:
  struct Options {
    std::FILE* out = stderr;
    double line_seconds = 5.0;   // to the first plain line; each wait is twice the one before
    double most_seconds = 60.0;  // between plain lines
    double bar_seconds = 0.1;    // between redraws
    int terminal = -1;           // 1: a terminal of `width` columns, 0: none, -1: ask `out`
    int width = 0;               // 0: ask
  };

  // `total` is in steps of any kind; 0 where it is not known.
  Progress(std::string label, std::int64_t total, const Options& options);
  Progress(std::string label, std::int64_t total);
  ~Progress();  // clears the bar of unfinished work
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Shows `done` of `total`, with a few words. Throws io::Interrupted after Ctrl-C.
  void update(std::int64_t done, std::string_view note = {});
  // One last line: label, time it took, note. Work that took under a second on no terminal leaves
  // no line.
  void finish(std::string_view note = {});
  // Takes the bar away, so that something else may be printed; the next update() draws it again.
  void clear();

  double seconds() const;

 private:
  void show_if_due();
  void draw_bar();
  void print_line();
  void tick();
  void stop_ticking();

  std::string label_;
  std::int64_t total_;
  Options options_;
  bool terminal_;
  double wait_;  // from last_ to the next line or redraw
  std::chrono::steady_clock::time_point begin_, last_;

  std::mutex mutex_;  // of all below, and of last_ and wait_
  std::int64_t done_ = 0;
  std::string note_;
  bool finished_ = false;
  bool bar_shown_ = false;
  bool cleared_ = false;  // since the last update()
  std::condition_variable ended_;
  std::thread ticker_;  // shows that work goes on where update() is not called
};

// "42 s", "3 min 05 s", "1 h 02 min".
std::string format_duration(double seconds);

}  // namespace twell::cli
