// What was measured, as JSON lines: one object a line, in the file as soon as it is known, so that
// a run that is ended by a time limit leaves all that it measured.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace twell::bench {

// One line. `variant` is the stable name by which predictions and other runs find it. Times are
// `us`, rates `bytes_per_s` and `flops_per_s`.
class Line {
 public:
  explicit Line(const std::string& kind, const std::string& variant = "");
  Line& add(const char* name, double value);  // null where it is not finite
  Line& add(const char* name, std::int64_t value);
  Line& add(const char* name, int value) { return add(name, static_cast<std::int64_t>(value)); }
  Line& add(const char* name, bool value);
  Line& add(const char* name, const std::string& value);
  Line& add(const char* name, const char* value) { return add(name, std::string(value)); }
  std::string text() const { return text_ + "}"; }

 private:
  Line& raw(const char* name, const std::string& value);
  std::string text_;
};

class Report {
 public:
  // Starts the file anew; writes nowhere where `path` is empty.
  explicit Report(const std::string& path);
  void add(const Line& line);

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace twell::bench
