// What a layer can do without is tried: memory for it may be missing.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "twell/status.h"

namespace twell::lm {

// Calls f. False where that found no memory, of PyTorch's own or of an operator's.
template <class F>
bool found_memory(const F& f) {
  try {
    f();
  } catch (const c10::OutOfMemoryError&) {
    return false;
  } catch (const c10::Error& error) {
    // A library that could not make its workspace.
    if (error.what_without_backtrace() == nullptr ||
        std::string_view(error.what_without_backtrace()).find("ALLOC_FAILED") ==
            std::string_view::npos) {
      throw;
    }
    return false;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::out_of_memory) throw;
    return false;
  }
  return true;
}

}  // namespace twell::lm
