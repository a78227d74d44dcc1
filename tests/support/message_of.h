// What an action that should fail says.
#pragma once

#include <string>

#include "twell/status.h"

namespace twell::test {

// The message of the twell::Error that f() throws; empty where it throws none.
template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace twell::test
