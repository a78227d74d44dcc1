// What the parts of the emulated GPU share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace twell::emulation {

inline void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error(std::string("emulated GPU: ") + what);
}

struct Allocation {
  std::size_t bytes = 0;
  int device = 0;
};
using DeviceMemory = std::map<std::byte*, Allocation>;
const DeviceMemory& device_memory();

// One cp.async: done when its group is waited for.
struct Copy {
  std::uint32_t to;
  const void* from;
  std::uint32_t bytes;
};
using CopyGroup = std::vector<Copy>;

// The running thread's groups, oldest first; the last is not committed yet.
std::vector<CopyGroup>& copies();

// In the block's shared memory.
std::byte* shared_at(std::uint32_t address, std::uint32_t bytes);

// Copies what other blocks made known of `bytes` of device memory, and what this block stored.
void read_other_block(void* to, const void* from, std::size_t bytes);

// A call of the wrapper `name`.
struct Call {
  const char* name;
  const char* file;
  int line;
  bool operator<(const Call& other) const {
    return std::tie(line, name, file) < std::tie(other.line, other.name, other.file);
  }
};
// The running thread's part of an access by its warp (accesses.h): `bytes` from `at`, null for
// none.
void count_access(const Call& call, const void* at, std::size_t bytes);

}  // namespace twell::emulation
