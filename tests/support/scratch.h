// A directory that is removed again.
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>

namespace twell::test {

class Scratch {
 public:
  Scratch() {
    static std::atomic<int> next = 0;
    path_ = std::filesystem::temp_directory_path() /
            ("twell-train-test-" + std::to_string(getpid()) + "-" + std::to_string(next++));
    std::filesystem::create_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace twell::test
