// Threads, barriers and warp collectives of the emulated GPU.
#include "tests/cuda/emulation/fibers.h"

#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define TWELL_ASAN_FIBERS
#endif

namespace twell::emulation {
namespace {

// A kernel's frame without optimisation and with AddressSanitizer's red zones stays below 32 KiB.
constexpr std::size_t kStackBytes = std::size_t{128} << 10;

enum class Waits { no, block, warp, ended };

struct Fiber {
  ucontext_t context = {};
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  Waits waits = Waits::no;
  const char* at = "";  // the collective it waits in
  Place place;
  std::vector<CopyGroup> copies;  // oldest first; the last is open
  void* fake_stack = nullptr;
};

struct Warp {
  std::array<void*, 32> values = {};
  int arrived = 0;
  int live = 0;
  const char* what = nullptr;
  void (*combine)(void* const*) = nullptr;
};

struct Block {
  ucontext_t scheduler = {};
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  std::size_t scheduler_stack_bytes = 0;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  int live = 0;
  int at_barrier = 0;
  Fiber* running = nullptr;
  const std::function<void()>* body = nullptr;
  std::vector<std::byte> shared;
  std::exception_ptr error;
};

Block block;  // the one that runs; kernels do not start kernels
Order order = Order::ascending;
std::mt19937 random_order;

// From the running fiber to the scheduler.
void yield() {
  Fiber* self = block.running;
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_start_switch_fiber(self->waits == Waits::ended ? nullptr : &self->fake_stack,
                                 block.scheduler_stack, block.scheduler_stack_bytes);
#endif
  swapcontext(&self->context, &block.scheduler);
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(self->fake_stack, &block.scheduler_stack,
                                  &block.scheduler_stack_bytes);
#endif
}

void resume(Fiber& fiber) {
  block.running = &fiber;
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_start_switch_fiber(&block.scheduler_fake_stack, fiber.stack.get(), kStackBytes);
#endif
  swapcontext(&block.scheduler, &fiber.context);
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(block.scheduler_fake_stack, nullptr, nullptr);
#endif
}

void release_barrier() {
  if (block.at_barrier == 0 || block.at_barrier < block.live) return;
  block.at_barrier = 0;
  for (auto& fiber : block.fibers) {
    if (fiber->waits == Waits::block) fiber->waits = Waits::no;
  }
}

std::size_t warp_of(const Fiber& fiber) { return fiber.place.thread.x / 32; }

void release_warp(std::size_t w) {
  Warp& warp = block.warps[w];
  if (warp.arrived == 0 || warp.arrived < warp.live) return;
  warp.combine(warp.values.data());
  warp.arrived = 0;
  warp.values = {};
  const std::size_t end = std::min(block.fibers.size(), (w + 1) * 32);
  for (std::size_t i = w * 32; i < end; ++i) {
    if (block.fibers[i]->waits == Waits::warp) block.fibers[i]->waits = Waits::no;
  }
}

void enter() {
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(nullptr, &block.scheduler_stack, &block.scheduler_stack_bytes);
#endif
  Fiber* self = block.running;
  try {
    (*block.body)();
  } catch (...) {
    block.error = std::current_exception();
  }
  self->waits = Waits::ended;
  block.live -= 1;
  block.warps[warp_of(*self)].live -= 1;
  release_barrier();
  release_warp(warp_of(*self));
  yield();
}

[[noreturn]] void deadlock() {
  std::string where = "threads wait for others that never come:";
  std::size_t named = 0;
  for (const auto& fiber : block.fibers) {
    if (fiber->waits == Waits::ended || named++ == 4) continue;
    where += " thread " + std::to_string(fiber->place.thread.x) + " in " + fiber->at + ";";
  }
  throw std::runtime_error(where);
}

// Each of the threads that does not wait, up to its next collective; false if all wait.
bool resume_all(const std::vector<Fiber*>& turn, std::size_t first, std::size_t end) {
  bool progress = false;
  for (std::size_t i = first; i < end; ++i) {
    if (turn[i]->waits != Waits::no) continue;
    resume(*turn[i]);
    progress = true;
    if (block.error) std::rethrow_exception(block.error);
  }
  return progress;
}

void run_block(dim3 grid, dim3 index, dim3 size, std::size_t shared_bytes) {
  const std::size_t threads = size.x;
  while (block.fibers.size() < threads) block.fibers.push_back(std::make_unique<Fiber>());
  block.fibers.resize(threads);
  block.warps.assign((threads + 31) / 32, {});
  block.live = static_cast<int>(threads);
  block.at_barrier = 0;
  block.error = nullptr;
  // All bits set is a NaN in every format. The memory is this block's alone and of its exact size.
  std::vector<std::byte>(shared_bytes, std::byte{0xff}).swap(block.shared);
  std::vector<Fiber*> turn;
  for (std::size_t i = 0; i < threads; ++i) {
    Fiber& fiber = *block.fibers[i];
    fiber.waits = Waits::no;
    fiber.copies.assign(1, {});
    fiber.place = {dim3(static_cast<unsigned>(i)), index, size, grid};
    block.warps[i / 32].live += 1;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &block.scheduler;
    makecontext(&fiber.context, &enter, 0);
    turn.push_back(&fiber);
  }
  if (order == Order::descending) std::reverse(turn.begin(), turn.end());
  while (block.live > 0) {
    if (order == Order::shuffled) std::shuffle(turn.begin(), turn.end(), random_order);
    // Shuffled: every thread in turn, up to its next collective. Else a warp runs as far as it can
    // before the next one starts: the largest lead that barriers allow.
    const std::size_t together = order == Order::shuffled ? turn.size() : 32;
    bool progress = false;
    for (std::size_t first = 0; first < turn.size(); first += together) {
      const std::size_t end = std::min(first + together, turn.size());
      while (resume_all(turn, first, end)) {
        progress = true;
        if (order == Order::shuffled) break;
      }
    }
    if (!progress) deadlock();
  }
}

}  // namespace

const Place& place() { return block.running->place; }
std::byte* shared_memory() { return block.shared.data(); }
std::size_t shared_bytes() { return block.shared.size(); }
std::vector<CopyGroup>& copies() { return block.running->copies; }

void set_order(Order order_, unsigned seed) {
  order = order_;
  random_order.seed(seed);
}

void launch(dim3 grid, dim3 size, std::size_t shared_bytes, const std::function<void()>& body) {
  block.body = &body;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) run_block(grid, dim3(x, y, z), size, shared_bytes);
    }
  }
}

void block_barrier() {
  Fiber& self = *block.running;
  self.waits = Waits::block;
  self.at = "__syncthreads";
  block.at_barrier += 1;
  release_barrier();
  if (self.waits == Waits::block) yield();
}

void warp_collective(const char* what, void* value, void (*combine)(void* const*)) {
  Fiber& self = *block.running;
  Warp& warp = block.warps[warp_of(self)];
  if (warp.arrived > 0 && warp.combine != combine) {
    throw std::runtime_error(std::string("lanes of one warp meet in ") + what + " and " +
                             warp.what);
  }
  warp.what = what;
  warp.combine = combine;
  warp.values[self.place.thread.x % 32] = value;
  warp.arrived += 1;
  self.waits = Waits::warp;
  self.at = what;
  release_warp(warp_of(self));
  if (self.waits == Waits::warp) yield();
}

}  // namespace twell::emulation
