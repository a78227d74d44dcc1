// What the parts of the emulated GPU share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace twell::emulation {

// One cp.async: done when its group is waited for.
struct Copy {
  std::uint32_t to;
  const void* from;
  std::uint32_t bytes;
};
using CopyGroup = std::vector<Copy>;

// The running thread's groups, oldest first; the last is not committed yet.
std::vector<CopyGroup>& copies();

}  // namespace twell::emulation
