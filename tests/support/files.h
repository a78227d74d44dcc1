// Files for tests, and what an error about one must say.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "twell/status.h"

namespace twell::io {

// A directory that is gone afterwards.
class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "twell-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void spit(const std::filesystem::path& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The message of the Error that `action` throws; it is one line, begins with `where`, is of `kind`
// and holds every one of `parts`.
inline void expect_error(const std::function<void()>& action, ErrorKind kind,
                         const std::string& where, const std::vector<std::string>& parts) {
  try {
    action();
    FAIL() << "expected an error with " << (parts.empty() ? "" : parts.front());
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << message;
    EXPECT_EQ(message.rfind(where, 0), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), where.size() + 400) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << message << "\n  lacks: " << part;
    }
  }
}

inline void expect_file_error(const std::function<void()>& action, const std::string& file,
                              const std::vector<std::string>& parts) {
  expect_error(action, ErrorKind::environment, file, parts);
}

}  // namespace twell::io
