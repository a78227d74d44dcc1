#include "files/note.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <utility>

namespace twell::io {
namespace {

struct Notes {
  std::mutex mutex;
  std::set<std::string> told;
  std::function<void(const std::string&)> sink = [](const std::string& line) {
    std::fputs(("note: " + line + "\n").c_str(), stderr);
  };
};

Notes& notes() {
  static Notes all;
  return all;
}

}  // namespace

void note(std::string_view line) {
  std::string text(line);
  std::ranges::replace(text, '\n', ' ');  // of a file's name
  Notes& all = notes();
  const std::lock_guard lock(all.mutex);
  if (!all.told.insert(text).second || !all.sink) return;
  all.sink(text);
}

void set_note_sink(std::function<void(const std::string&)> sink) {
  Notes& all = notes();
  const std::lock_guard lock(all.mutex);
  all.sink = std::move(sink);
}

}  // namespace twell::io
