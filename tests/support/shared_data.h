// Files that some tests read and that are no part of the repository: texts, tokenizers, models.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace twell::test {

// The folder that TWELL_DATA names, else shared/data beside the checkout.
inline std::filesystem::path shared_data() {
  const char* folder = std::getenv("TWELL_DATA");
  return std::filesystem::absolute(folder != nullptr ? folder : "../shared/data")
      .lexically_normal();
}

// Why a test that wants `file` of it is skipped: the same for all where there is no folder.
inline std::string missing(const std::filesystem::path& file) {
  const std::filesystem::path folder = shared_data();
  return (std::filesystem::exists(folder) ? file : folder).string() +
         " is not here; TWELL_DATA names the folder of the tests' shared data";
}

// Declares `variable`, the path of its file or folder `name`; without that the test is skipped.
#define TWELL_DATA_OR_SKIP(variable, name)                                      \
  const std::filesystem::path variable = ::twell::test::shared_data() / (name); \
  if (!std::filesystem::exists(variable)) GTEST_SKIP() << ::twell::test::missing(variable)

}  // namespace twell::test
