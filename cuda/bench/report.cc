#include "cuda/bench/report.h"

#include "twell/status.h"

namespace twell::bench {

Report::Report(const std::string& path) : path_(path) {
  if (path_.empty()) return;
  out_.open(path_);
  if (!out_) throw Error(ErrorKind::environment, path_, "could not be written");
}

void Report::add(const Line& line) {
  if (path_.empty()) return;
  // Numbers that are not finite are null; a driver's message need not be UTF-8.
  out_ << line.dump(-1, ' ', false, Line::error_handler_t::replace) << '\n';
  if (!out_.flush()) throw Error(ErrorKind::environment, path_, "could not be written");
}

}  // namespace twell::bench
