// Threads, barriers and warp collectives of the emulated GPU, and the turns of its blocks.
#include "cuda/tests/emulation/fibers.h"

#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuda/tests/emulation/accesses.h"
#include "cuda/tests/emulation/weak_memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define TWELL_ASAN_FIBERS
#endif

namespace twell::emulation {
namespace {

// A kernel's frame without optimisation and with AddressSanitizer's red zones stays below 32 KiB.
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
// Atomics and reads of other blocks' memory by one thread. Kernels do some hundreds; a thread that
// waits for another block is given this many tries, among which the others have their turns.
constexpr int kPolls = 200'000;

enum class Waits { no, block, warp, ended };

// Where a fiber goes on, or the scheduler.
struct Context {
  ucontext_t start = {};
  void* here[5] = {};
  bool started = false;
};

[[noreturn, gnu::noinline, gnu::no_sanitize("address")]] void go_on(Context& to) {
  if (std::exchange(to.started, true)) __builtin_longjmp(to.here, 1);
  setcontext(&to.start);
  std::abort();
}

// Goes on at `to` until another comes back to `from`. swapcontext() sets the signal mask, two
// system calls each time: three times as long as all else that the emulation does. longjmp() is
// AddressSanitizer's, which knows of one stack alone.
[[gnu::noinline, gnu::no_sanitize("address")]] void switch_context(Context& from, Context& to) {
  if (__builtin_setjmp(from.here) == 0) go_on(to);
}

struct Fiber {
  Context context;
  // Not set to zero: only the pages that are used count, of some thousand threads.
  std::unique_ptr<std::byte[]> stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  Waits waits = Waits::no;
  const char* at = "";  // the collective it waits in
  Place place;
  std::vector<CopyGroup> copies;  // oldest first; the last is open
  void* fake_stack = nullptr;
  Stores stores;  // since its last barrier
  int polls = 0;
  const void* polled = nullptr;
  std::array<std::byte, 16> found = {};  // there
};

struct Warp {
  std::array<void*, 32> values = {};
  int arrived = 0;
  int live = 0;
  const char* what = nullptr;
  void (*combine)(void* const*) = nullptr;
  Stores stores;  // which all lanes know of, by __syncwarp
  WarpAccesses accesses;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  int live = 0;
  int at_barrier = 0;
  Fiber* running = nullptr;
  std::vector<std::byte> shared;
  std::exception_ptr error;
  // Threads in the order of their turns; [group, group_end) goes round until all of it waits.
  std::vector<Fiber*> turn;
  std::size_t group = 0, next = 0;
  bool progress = false;
  Stores stores;  // which all threads know of, by __syncthreads
  View view;
};

// The scheduler's own context, to which fibers return.
struct Scheduler {
  Context context = {{}, {}, true};
  void* fake_stack = nullptr;
  const void* stack = nullptr;
  std::size_t stack_bytes = 0;
};

Scheduler scheduler;
Block* block = nullptr;  // the one that runs
std::vector<std::unique_ptr<Block>> blocks;
std::vector<std::unique_ptr<Fiber>> spare;
const std::function<void()>* body = nullptr;
std::optional<WeakMemory> memory;  // of a launch of concurrent blocks
Order order = Order::ascending;
std::mt19937 random_order;
Blocks together = Blocks::one_by_one;
std::size_t resident = 8;
std::mt19937 random_blocks;
bool gives_way = false;  // the running block: its thread found nothing new
bool counts = false;     // accesses

// From the running fiber to the scheduler.
void yield() {
  Fiber* self = block->running;
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_start_switch_fiber(&self->fake_stack, scheduler.stack, scheduler.stack_bytes);
#endif
  switch_context(self->context, scheduler.context);
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(self->fake_stack, &scheduler.stack, &scheduler.stack_bytes);
#endif
}

void resume(Fiber& fiber) {
  block->running = &fiber;
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_start_switch_fiber(&scheduler.fake_stack, fiber.stack.get(), kStackBytes);
#endif
  switch_context(scheduler.context, fiber.context);
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(scheduler.fake_stack, nullptr, nullptr);
#endif
}

void collect() {
  if (memory) memory->collect(block->view, block->running->stores);
}

void move_stores(Stores& from, Stores& to) {
  to.insert(to.end(), from.begin(), from.end());
  from.clear();
}

void release_barrier() {
  if (block->at_barrier == 0 || block->at_barrier < block->live) return;
  block->at_barrier = 0;
  for (auto& fiber : block->fibers) {
    if (fiber->waits != Waits::block) continue;
    fiber->waits = Waits::no;
    move_stores(fiber->stores, block->stores);
  }
  for (Warp& warp : block->warps) {
    move_stores(warp.stores, block->stores);
    warp.accesses.close();
  }
}

std::size_t warp_of(const Fiber& fiber) { return fiber.place.thread.x / 32; }

void release_warp(std::size_t w) {
  Warp& warp = block->warps[w];
  if (warp.arrived == 0 || warp.arrived < warp.live) return;
  warp.combine(warp.values.data());
  warp.arrived = 0;
  warp.values = {};
  warp.accesses.close();
  const std::size_t end = std::min(block->fibers.size(), (w + 1) * 32);
  for (std::size_t i = w * 32; i < end; ++i) {
    if (block->fibers[i]->waits == Waits::warp) block->fibers[i]->waits = Waits::no;
  }
}

void run_thread() {
  Fiber& self = *block->running;
  try {
    (*body)();
  } catch (...) {
    block->error = std::current_exception();
  }
  self.waits = Waits::ended;
  block->live -= 1;
  block->warps[warp_of(self)].live -= 1;
  release_barrier();
  release_warp(warp_of(self));
}

// A fiber that is started runs one thread after the other: starting takes three system calls.
void enter() {
#ifdef TWELL_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.stack_bytes);
#endif
  for (;;) {
    run_thread();
    yield();
  }
}

[[noreturn]] void deadlock() {
  std::string where = "threads wait for others that never come:";
  std::size_t named = 0;
  for (const auto& fiber : block->fibers) {
    if (fiber->waits == Waits::ended || named++ == 4) continue;
    where += " thread " + std::to_string(fiber->place.thread.x) + " in " + fiber->at + ";";
  }
  throw std::runtime_error(where);
}

// The thread that runs next, up to its next collective; null if all wait. Shuffled: every thread in
// turn. Else a warp runs as far as it can before the next one starts: the largest lead that
// barriers allow.
Fiber* next_fiber() {
  const std::size_t size = block->turn.size();
  const std::size_t group = order == Order::shuffled ? size : 32;
  for (std::size_t idle = 0; idle <= (size + group - 1) / group;) {
    const std::size_t end = std::min(block->group + group, size);
    while (block->next < end) {
      Fiber* fiber = block->turn[block->next++];
      if (fiber->waits == Waits::no) {
        block->progress = true;
        return fiber;
      }
    }
    if (!block->progress) {
      ++idle;
      block->group = end == size ? 0 : end;
    } else if (order == Order::shuffled) {
      std::shuffle(block->turn.begin(), block->turn.end(), random_order);
    }
    block->progress = false;
    block->next = block->group;
  }
  return nullptr;
}

std::unique_ptr<Fiber> new_fiber() {
  auto fiber = std::make_unique<Fiber>();
  ucontext_t& start = fiber->context.start;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber->stack.get();
  start.uc_stack.ss_size = kStackBytes;
  start.uc_link = nullptr;  // enter() does not return
  makecontext(&start, &enter, 0);
  return fiber;
}

// As many as a block has threads, whose fibers have all ended theirs; those that are left over wait
// for a larger block.
void take_fibers(std::vector<std::unique_ptr<Fiber>>& fibers, std::size_t threads) {
  while (fibers.size() > threads) {
    spare.push_back(std::move(fibers.back()));
    fibers.pop_back();
  }
  while (fibers.size() < threads) {
    if (spare.empty()) spare.push_back(new_fiber());
    fibers.push_back(std::move(spare.back()));
    spare.pop_back();
  }
}

void start_block(dim3 grid, dim3 index, dim3 size, std::size_t shared_bytes) {
  const std::size_t threads = size.x;
  take_fibers(block->fibers, threads);
  block->warps.assign((threads + 31) / 32, {});
  block->live = static_cast<int>(threads);
  block->at_barrier = 0;
  block->error = nullptr;
  block->stores.clear();
  if (memory) memory->start(block->view);
  // The memory is this block's alone and of its exact size. All bits set is a NaN in every format.
  if (block->shared.size() != shared_bytes)
    std::vector<std::byte>(shared_bytes).swap(block->shared);
  std::fill(block->shared.begin(), block->shared.end(), std::byte{0xff});
  block->turn.clear();
  for (std::size_t i = 0; i < threads; ++i) {
    Fiber& fiber = *block->fibers[i];
    fiber.waits = Waits::no;
    fiber.copies.assign(1, {});
    fiber.place = {dim3(static_cast<unsigned>(i)), index, size, grid};
    fiber.stores.clear();
    fiber.polls = 0;
    fiber.polled = nullptr;
    block->warps[i / 32].live += 1;
    block->turn.push_back(&fiber);
  }
  if (order == Order::descending) std::reverse(block->turn.begin(), block->turn.end());
  if (order == Order::shuffled) {
    std::shuffle(block->turn.begin(), block->turn.end(), random_order);
  }
  block->group = block->next = 0;
  block->progress = false;
}

void end_block() {
  if (memory) memory->end(block->view);
  for (Warp& warp : block->warps) warp.accesses.close();
}

// One thread of the block.
void step() {
  Fiber* fiber = next_fiber();
  if (fiber == nullptr) deadlock();
  resume(*fiber);
  if (block->error) std::rethrow_exception(block->error);
  collect();
}

void run_one_by_one(dim3 grid, dim3 size, std::size_t shared_bytes,
                    const std::vector<dim3>& indices) {
  if (blocks.empty()) blocks.push_back(std::make_unique<Block>());
  block = blocks.front().get();
  for (const dim3 index : indices) {
    start_block(grid, index, size, shared_bytes);
    while (block->live > 0) step();
    end_block();
  }
}

// Some at a time. The last of `running` runs for 1, 2, 4 ... 1024 steps, then takes any place; one
// that gives way takes the first, so that it may lie still while all others run to their ends.
void run_together(dim3 grid, dim3 size, std::size_t shared_bytes, std::vector<dim3> indices) {
  // Blocks that share something are often neighbours: then they run at the same time.
  if (random_blocks() % 2 == 0) {
    std::reverse(indices.begin(), indices.end());  // the last starts first
  } else {
    std::shuffle(indices.begin(), indices.end(), random_blocks);
  }
  while (blocks.size() < resident) blocks.push_back(std::make_unique<Block>());
  std::vector<Block*> free, running;
  for (std::size_t i = 0; i < resident; ++i) free.push_back(blocks[i].get());
  const auto any_place = [&] {
    return running.begin() + static_cast<std::ptrdiff_t>(random_blocks() % (running.size() + 1));
  };
  while (!indices.empty() || !running.empty()) {
    for (; !indices.empty() && !free.empty(); indices.pop_back(), free.pop_back()) {
      block = free.back();
      running.insert(any_place(), block);
      start_block(grid, indices.back(), size, shared_bytes);
    }
    block = running.back();
    running.pop_back();
    if (memory) memory->install(block->view);
    gives_way = false;
    for (int left = 1 << random_blocks() % 11; left > 0 && block->live > 0 && !gives_way; --left) {
      step();
    }
    if (block->live > 0) {
      running.insert(gives_way ? running.begin() : any_place(), block);
    } else {
      end_block();
      free.push_back(block);
    }
  }
}

// The running thread looked at a place that another may change, and found `value`. Others have
// their turn if it was the same as before: it may wait for them.
void poll(const void* at, const void* value, std::size_t bytes, bool atomic) {
  Fiber& self = *block->running;
  if (++self.polls > kPolls) {
    throw std::runtime_error("thread " + std::to_string(self.place.thread.x) + " of block " +
                             std::to_string(self.place.block.x) +
                             " waits for a value that never comes");
  }
  const bool same = self.polled == at && std::memcmp(self.found.data(), value, bytes) == 0;
  self.polled = at;
  std::memcpy(self.found.data(), value, bytes);
  // A thread that waits for several places finds none the same as the one before.
  const bool may_wait = same || self.polls % 64 == 0;
  // Where blocks meet is where it matters which one goes on.
  gives_way |= may_wait || (atomic && random_blocks() % 2 == 0);
  if (may_wait || (atomic && together != Blocks::one_by_one)) yield();
}

}  // namespace

const Place& place() { return block->running->place; }
std::byte* shared_memory() { return block->shared.data(); }
std::size_t shared_bytes() { return block->shared.size(); }
std::vector<CopyGroup>& copies() { return block->running->copies; }

void set_order(Order order_, unsigned seed) {
  order = order_;
  random_order.seed(seed);
}
void set_blocks(Blocks together_, unsigned seed, int resident_) {
  together = together_;
  random_blocks.seed(seed);
  resident = static_cast<std::size_t>(std::max(resident_, 1));
}

void launch(dim3 grid, dim3 size, std::size_t shared_bytes, const std::function<void()>& body_) {
  body = &body_;
  std::vector<dim3> indices;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) indices.emplace_back(x, y, z);
    }
  }
  try {
    if (together == Blocks::concurrent) memory.emplace(device_memory());
    if (together == Blocks::one_by_one) {
      run_one_by_one(grid, size, shared_bytes, indices);
    } else {
      run_together(grid, size, shared_bytes, std::move(indices));
    }
  } catch (...) {
    memory.reset();
    blocks.clear();  // threads have stopped somewhere
    throw;
  }
  memory.reset();
}

void count_accesses(bool on) {
  counts = on;
  if (on) clear_accesses();
}

void count_access(const Call& call, const void* at, std::size_t bytes) {
  if (!counts) return;
  const Fiber& self = *block->running;
  block->warps[warp_of(self)].accesses.add(static_cast<int>(self.place.thread.x % 32), call, at,
                                           bytes);
}

void fence() {
  if (together == Blocks::one_by_one) return;
  if (memory) {
    Fiber& self = *block->running;
    collect();
    // Its own stores, and those that it knows of.
    memory->publish(block->view, self.stores);
    memory->publish(block->view, block->warps[warp_of(self)].stores);
    memory->publish(block->view, block->stores);
    memory->refresh(block->view);
  }
  yield();
}

void* begin_atomic(void* at, std::size_t bytes) {
  if (!memory) return at;
  collect();
  void* truth = memory->truth_of(block->view, at, bytes);
  return truth == nullptr ? at : truth;
}

void end_atomic(void* at, const void* truth, std::size_t bytes) {
  if (truth != at) memory->changed(block->view, at, bytes);
  poll(at, truth, bytes, true);
}

void read_other_block(void* to, const void* from, std::size_t bytes) {
  if (!memory || !memory->read(block->view, to, from, bytes)) std::memcpy(to, from, bytes);
  poll(from, to, bytes, false);
}

void block_barrier() {
  Fiber& self = *block->running;
  collect();
  self.waits = Waits::block;
  self.at = "__syncthreads";
  block->at_barrier += 1;
  release_barrier();
  if (self.waits == Waits::block) yield();
}

void warp_collective(const char* what, void* value, void (*combine)(void* const*)) {
  Fiber& self = *block->running;
  Warp& warp = block->warps[warp_of(self)];
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

void warp_barrier() {
  collect();
  warp_collective("__syncwarp", block->running, [](void* const* lanes) {
    for (int l = 0; l < 32; ++l) {
      if (lanes[l] == nullptr) continue;
      auto& fiber = *static_cast<Fiber*>(lanes[l]);
      move_stores(fiber.stores, block->warps[warp_of(fiber)].stores);
    }
  });
}

}  // namespace twell::emulation
