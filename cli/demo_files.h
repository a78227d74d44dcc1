// The directory of a demo: model/ (a training run), cache/ (token ids), report.html, results.json.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "files/unfinished.h"

namespace twell::cli {

// Trains into a temporary directory, so that an older demo stays whole until the new one is there.
class DemoDirectory {
 public:
  // Made if absent. Throws Error (environment) where that fails, or where `path` holds files that
  // are no demo's.
  explicit DemoDirectory(const std::filesystem::path& path);
  ~DemoDirectory();  // without keep(): removes what was trained
  DemoDirectory(const DemoDirectory&) = delete;
  DemoDirectory& operator=(const DemoDirectory&) = delete;

  const std::filesystem::path& training() const { return temporary_; }
  // Replaces the older model and returns the directory of the new one.
  std::string keep();

 private:
  // What is replaced must bear a demo's mark: where `name` is there, `file` in it holds these
  // bytes.
  void expect_own(const char* name, const std::filesystem::path& file, std::string_view mark) const;

  void remove_trained() const;

  std::filesystem::path path_, temporary_;
  bool made_ = false;
  std::optional<io::Unfinished> unfinished_;
};

// The first words of a text: a prompt.
std::string opening_of(const std::string& file);

}  // namespace twell::cli
