// Which sectors of device memory a warp's lanes touch together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cuda/tests/emulation/fibers.h"

namespace twell::emulation {

// Of one warp, since its last collective. All lanes have come to it when it is over: only then are
// accesses complete.
class WarpAccesses {
 public:
  void add(int lane, const Call& call, const void* at, std::size_t bytes);
  // At a collective and at the end: adds what there is to accesses().
  void close();

 private:
  struct Trip {
    std::vector<std::uintptr_t> addresses;
    std::size_t bytes = 0;  // from each
  };
  struct Trips {
    std::array<std::size_t, 32> done = {};  // of each lane
    std::vector<Trip> all;
  };
  std::map<Call, Trips> calls_;
};
void clear_accesses();

}  // namespace twell::emulation
