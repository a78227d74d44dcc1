#include "cuda/tests/emulation/accesses.h"

#include <cuda_runtime.h>

#include <algorithm>

namespace twell::emulation {
namespace {

constexpr std::uintptr_t kSector = 32;

std::map<std::string, Accesses> counted;

std::int64_t distinct(std::vector<std::uintptr_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return static_cast<std::int64_t>(values.size());
}

}  // namespace

void WarpAccesses::add(int lane, const Call& call, const void* at, std::size_t bytes) {
  Trips& trips = calls_[call];
  const std::size_t trip = trips.done.at(static_cast<std::size_t>(lane))++;
  if (trips.all.size() <= trip) trips.all.resize(trip + 1);
  if (at == nullptr) return;
  trips.all[trip].addresses.push_back(reinterpret_cast<std::uintptr_t>(at));
  trips.all[trip].bytes = bytes;
}

void WarpAccesses::close() {
  for (auto& [call, trips] : calls_) {
    for (auto& [addresses, bytes] : trips.all) {
      if (addresses.empty()) continue;
      // Addresses are multiples of the size, at most 16: no two overlap in part, none takes two
      // sectors.
      const auto sector_bytes = static_cast<std::int64_t>(kSector);
      const std::int64_t read = distinct(addresses) * static_cast<std::int64_t>(bytes);
      for (std::uintptr_t& address : addresses) address /= kSector;
      const std::int64_t sectors = distinct(addresses);
      const std::int64_t needed = (read + sector_bytes - 1) / sector_bytes;
      Accesses& sum = counted[call.name];
      sum.warps += 1;
      sum.sectors += sectors;
      sum.needed += needed;
      sum.worst = std::max(sum.worst, static_cast<double>(sectors) / static_cast<double>(needed));
    }
  }
  calls_.clear();
}

const std::map<std::string, Accesses>& accesses() { return counted; }
void clear_accesses() { counted.clear(); }

}  // namespace twell::emulation
