#include "cli/progress.h"

#include <fmt/core.h>

#include <algorithm>

#include "cli/terminal.h"
#include "files/interrupt.h"

namespace twell::cli {
namespace {

constexpr double kTick = 1.0;  // seconds

double since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

std::string format_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds + 0.5);
  if (seconds < 9.95) return fmt::format("{:.1f} s", seconds);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

Progress::Progress(std::string label, std::int64_t total, const Options& options)
    : label_(std::move(label)),
      total_(total),
      options_(options),
      terminal_(options.terminal < 0 ? knows_sequences(options.out) : options.terminal == 1),
      wait_(terminal_ ? options.bar_seconds : options.line_seconds),
      begin_(std::chrono::steady_clock::now()),
      last_(begin_) {
  if (terminal_ && options_.width == 0) options_.width = columns_of(options_.out);
  ticker_ = std::thread([this] { tick(); });
}

Progress::Progress(std::string label, std::int64_t total)
    : Progress(std::move(label), total, Options{}) {}

Progress::~Progress() {
  stop_ticking();
  clear();
}

double Progress::seconds() const { return since(begin_); }

// The time that a bar shows changes every second.
void Progress::tick() {
  std::unique_lock lock(mutex_);
  while (!finished_) {
    ended_.wait_for(lock, std::chrono::duration<double>(std::max(kTick, wait_ - since(last_))));
    if (!finished_ && !cleared_ && since(last_) >= std::max(kTick, wait_)) show_if_due();
  }
}

void Progress::stop_ticking() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  ended_.notify_all();
  if (ticker_.joinable()) ticker_.join();
}

void Progress::update(std::int64_t done, std::string_view note) {
  io::check_interrupt();
  const std::lock_guard lock(mutex_);
  done_ = done;
  note_ = note;
  cleared_ = false;
  show_if_due();
}

void Progress::show_if_due() {
  if (since(last_) < wait_) return;
  last_ = std::chrono::steady_clock::now();
  if (terminal_) return draw_bar();
  wait_ = std::max(wait_, std::min(2 * wait_, options_.most_seconds));
  print_line();
}

void Progress::draw_bar() {
  std::string line = label_ + " ";
  if (total_ > 0) {
    constexpr int kCells = 24;
    const double part =
        std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0., 1.);
    const int full = static_cast<int>(part * kCells);
    line += fmt::format("[{}{}] {:3.0f}%", std::string(static_cast<std::size_t>(full), '#'),
                        std::string(static_cast<std::size_t>(kCells - full), '.'), part * 100);
    if (part > 0.01) line += fmt::format("  {} left", format_duration(seconds() * (1 / part - 1)));
  } else {
    line += format_duration(seconds());
  }
  if (!note_.empty()) line += fmt::format("  {}", note_);
  // A wrapped line could not be redrawn.
  line.resize(std::min(line.size(), static_cast<std::size_t>(options_.width - 1)));
  put(options_.out, "\r\x1b[K" + line);
  bar_shown_ = true;
}

void Progress::print_line() {
  const std::string part =
      total_ > 0 ? fmt::format("{}/{} ({:.0f}%)", done_, total_,
                               100.0 * static_cast<double>(done_) / static_cast<double>(total_))
                 : std::string("working");
  put(options_.out, fmt::format("{}: {}, {}{}{}\n", label_, part, format_duration(seconds()),
                                note_.empty() ? "" : ", ", note_));
}

void Progress::clear() {
  const std::lock_guard lock(mutex_);
  cleared_ = true;
  if (!bar_shown_) return;
  put(options_.out, "\r\x1b[K");
  bar_shown_ = false;
}

void Progress::finish(std::string_view note) {
  if (finished_) return;
  stop_ticking();
  clear();
  if (!terminal_ && seconds() < 1.0) return;
  put(options_.out, fmt::format("{}: done in {}{}{}\n", label_, format_duration(seconds()),
                                note.empty() ? "" : ", ", note));
}

}  // namespace twell::cli
