#include "cuda/bench/report.h"

#include <cmath>
#include <cstdio>

#include "twell/status.h"

namespace twell::bench {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      // Messages of drivers may have several lines.
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out + '"';
}

}  // namespace

Line::Line(const std::string& kind, const std::string& variant)
    : text_("{\"kind\": " + quoted(kind)) {
  if (!variant.empty()) add("variant", variant);
}

Line& Line::raw(const char* name, const std::string& value) {
  text_ += ", " + quoted(name) + ": " + value;
  return *this;
}

Line& Line::add(const char* name, double value) {
  if (!std::isfinite(value)) return raw(name, "null");
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.7g", value);
  return raw(name, digits);
}
Line& Line::add(const char* name, std::int64_t value) { return raw(name, std::to_string(value)); }
Line& Line::add(const char* name, bool value) { return raw(name, value ? "true" : "false"); }
Line& Line::add(const char* name, const std::string& value) { return raw(name, quoted(value)); }

Report::Report(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  out_.open(path_);
  if (!out_) throw Error(ErrorKind::environment, path_, "could not be written");
}

void Report::add(const Line& line) {
  if (path_.empty()) return;
  out_ << line.text() << '\n';
  if (!out_.flush()) throw Error(ErrorKind::environment, path_, "could not be written");
}

}  // namespace twell::bench
