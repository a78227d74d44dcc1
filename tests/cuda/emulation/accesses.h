// Which sectors of device memory a warp's lanes touch together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace twell::emulation {

// Of one warp, since its last collective. All lanes have come to it when it is over: only then are
// accesses complete.
class WarpAccesses {
 public:
  void add(int lane, const char* name, const void* site, const void* at, std::size_t bytes);
  // At a collective and at the end: adds what there is to accesses().
  void close();

 private:
  struct Call {
    std::array<int, 32> trips = {};  // of each lane
    struct Trip {
      std::vector<std::uintptr_t> addresses;
      std::size_t bytes = 0;  // of one
    };
    std::vector<Trip> accesses;
  };
  std::map<std::pair<const char*, const void*>, Call> calls_;
};

void clear_accesses();

}  // namespace twell::emulation
