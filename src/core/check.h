// Building twell::Error messages: one line that names operation, argument, expected and got.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "twell/status.h"

namespace twell {

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// Throws Error{invalid_argument} "twell::operation: argument: message" unless `ok`.
template <class... Parts>
void require(bool ok, std::string_view operation, std::string_view argument,
             const Parts&... parts) {
  if (!ok) [[unlikely]] {
    throw Error(ErrorKind::invalid_argument, concat("twell::", operation),
                concat(argument, ": ", parts...));
  }
}

// A broken invariant of this library: nothing a caller could handle.
#define TWELL_INVARIANT(condition)                                                                \
  do {                                                                                            \
    if (!(condition)) [[unlikely]] {                                                              \
      std::fprintf(stderr, "twell: internal invariant broken at %s:%d: %s\n", __FILE__, __LINE__, \
                   #condition);                                                                   \
      std::abort();                                                                               \
    }                                                                                             \
  } while (false)

}  // namespace twell
