#include "twell/context.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"

namespace twell {
namespace {

struct Buffer {
  void* data = nullptr;
  std::size_t bytes = 0;

  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data); }

  void* at_least(std::size_t wanted) {
    if (wanted <= bytes) return data;
    std::free(data);
    // Rounded to whole pages: 4 KiB.
    bytes = (wanted + 4095) / 4096 * 4096;
    data = std::aligned_alloc(64, bytes);
    if (data == nullptr) {
      bytes = 0;
      throw Error(ErrorKind::out_of_memory, "scratch",
                  concat("cannot allocate ", wanted, " bytes"));
    }
    return data;
  }
};

}  // namespace

struct Context::Arena {
  explicit Arena(int threads)
      : buffers(static_cast<std::size_t>(threads) * Context::kScratchSlots) {}
  std::vector<Buffer> buffers;
};

Context::Context(const ContextOptions& options)
    : threads_(options.threads == 0 ? default_threads() : options.threads),
      tier_(options.tier.value_or(CpuTier::portable)),
      hot_share_(options.hot_share),
      executor_(options.executor) {
  require(threads_ >= 1 && threads_ <= 4096, "Context", "threads", "expected 1 to 4096, got ",
          options.threads);
  require(hot_share_.value_or(0) >= 0, "Context", "hot_share", "expected 0 or more, got ",
          hot_share_.value_or(0));
  require(!executor_ || executor_->run != nullptr, "Context", "executor", "run is null");
  if (!options.tier) {
    tier_ = default_cpu_tier();
  } else if (!cpu_tier_available(tier_)) {
    throw Error(ErrorKind::unsupported, "Context",
                concat("tier: '", name_of(tier_), "' is not available on this machine"));
  }
  arena_ = std::make_unique<Arena>(threads_);
}

Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

void* Context::scratch(int thread, int slot, std::size_t bytes) {
  TWELL_INVARIANT(thread >= 0 && thread < threads_ && slot >= 0 && slot < kScratchSlots);
  return arena_->buffers[static_cast<std::size_t>(thread * kScratchSlots + slot)].at_least(bytes);
}

Context& thread_context(int threads) {
  struct Slot {
    std::optional<Context> context;
    std::string tier;
  };
  thread_local Slot slot;
  // By name: to ask the processor what it has takes 50 us on a virtual machine.
  const char* const variable = std::getenv("TWELL_CPU_TIER");
  const std::string tier = variable == nullptr ? "" : variable;
  if (!slot.context || slot.context->threads() != threads || slot.tier != tier) {
    slot.context.reset();
    slot.context.emplace(ContextOptions{threads, std::nullopt});
    slot.tier = tier;
  }
  return *slot.context;
}

}  // namespace twell
