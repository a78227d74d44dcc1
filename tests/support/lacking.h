// For tests that missing_calls.cc is linked into.
#pragma once

#include <cstdlib>

namespace twell::test {

// As long as it lives, what it names fails.
class Lacking {
 public:
  explicit Lacking(const char* what) { ::setenv("TWELL_TEST_LACKS", what, 1); }
  ~Lacking() { ::unsetenv("TWELL_TEST_LACKS"); }
  Lacking(const Lacking&) = delete;
  Lacking& operator=(const Lacking&) = delete;
};

}  // namespace twell::test
