// Twins of cuda/kernels/ptx/bulk.cuh. A copy's place is NaN from its start on, and filled when a
// thread waits for it: who reads too early, or is overtaken by the next copy, sees it.
#include <cuda_runtime.h>

#include <cstring>
#include <map>
#include <vector>

#include "cuda/tests/emulation/fibers.h"

namespace twell::cuda::ptx {
namespace {

using emulation::require;
using emulation::shared_at;

// In the eight bytes of the barrier.
struct Phase {
  std::uint32_t parity = 0;
  std::uint32_t missing = 0;  // arrivals
};

struct Barrier {
  std::uint32_t arrivals = 0;
  std::uint64_t expected = 0;  // bytes
  emulation::CopyGroup copies;
};
std::map<const std::byte*, Barrier> barriers;  // by their place; an initialisation starts one anew

Phase* phase_at(std::uint32_t address) {
  return reinterpret_cast<Phase*>(shared_at(address, sizeof(Phase)));
}

Barrier& barrier_at(std::uint32_t address) {
  const auto found = barriers.find(shared_at(address, sizeof(Phase)));
  require(found != barriers.end(), "a barrier that was not initialised");
  return found->second;
}

std::byte* copy_target(std::uint32_t to, std::uint32_t bytes) {
  require(to % 16 == 0 && bytes % 16 == 0, "misaligned bulk copy");
  require(to + bytes <= emulation::shared_bytes(), "bulk copy out of bounds");
  return emulation::shared_memory() + to;
}

void end_phase(Phase& phase, Barrier& barrier) {
  if (phase.missing > 0) return;
  std::uint64_t started = 0;
  for (const emulation::Copy& copy : barrier.copies) started += copy.bytes;
  if (started < barrier.expected) return;
  require(started == barrier.expected, "bulk copies of more bytes than expected");
  for (const emulation::Copy& copy : barrier.copies) {
    std::memcpy(copy_target(copy.to, copy.bytes), copy.from, copy.bytes);
  }
  barrier.copies.clear();
  barrier.expected = 0;
  phase = {phase.parity ^ 1U, barrier.arrivals};
}

}  // namespace

void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  *phase_at(barrier) = {0, arrivals};
  barriers[shared_at(barrier, sizeof(Phase))] = {arrivals, 0, {}};
}

void publish_barriers() {}

void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  barrier_at(barrier).expected += bytes;
  require(phase_at(barrier)->missing > 0, "more arrivals than the barrier takes");
  phase_at(barrier)->missing -= 1;
}

void copy_bulk(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  require(reinterpret_cast<std::uintptr_t>(from) % 16 == 0, "misaligned bulk copy");
  std::memset(copy_target(to, bytes), 0xff, bytes);
  barrier_at(barrier).copies.push_back({to, from, bytes});
}

void wait_barrier(std::uint32_t barrier, std::uint32_t parity) {
  Phase* phase = phase_at(barrier);
  while (phase->parity == parity) {
    end_phase(*phase, barrier_at(barrier));
    Phase seen;
    if (phase->parity == parity) emulation::read_other_block(&seen, phase, sizeof seen);
  }
}

}  // namespace twell::cuda::ptx
