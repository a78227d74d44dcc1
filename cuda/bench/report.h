// What was measured, as JSON lines: one object a line, in the file as soon as it is known, so that
// a run that is ended by a time limit leaves all that it measured.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace twell::bench {

// One line. `kind` comes first, then `variant`, the stable name by which predictions and other runs
// find it. Times are `us`, rates `bytes_per_s` and `flops_per_s`.
using Line = nlohmann::ordered_json;

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
