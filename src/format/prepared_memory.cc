#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "core/check.h"
#include "twell/packed.h"

namespace twell {
namespace {

constexpr std::size_t kHugePage = 2U << 20U;

std::shared_ptr<void> allocate_small(std::size_t bytes) {
  constexpr std::size_t kLine = PreparedMemory::kAlignment;
  const std::size_t whole = std::max(bytes, std::size_t{1}) + kLine - 1;
  return {std::aligned_alloc(kLine, whole / kLine * kLine), std::free};
}

// The block that was given back last, unless it is large. Training prepares a gate in each step,
// and the system clears new pages: of 12 MB for 8 ms, a tenth of a step of 1024 tokens.
class Spare {
 public:
  // One of so many bytes, or null.
  void* take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return bytes == bytes_ ? std::exchange(block_, nullptr) : nullptr;
  }
  void give(void* block, std::size_t bytes) {
    constexpr std::size_t kMost = 64U << 20U;
    if (bytes <= kMost) {
      const std::lock_guard lock(mutex_);
      std::swap(block, block_);
      std::swap(bytes, bytes_);
    }
    if (block != nullptr) munmap(block, bytes);
  }

 private:
  std::mutex mutex_;
  void* block_ = nullptr;
  std::size_t bytes_ = 0;
};

// Never destroyed: memory may be freed while the process ends.
Spare& spare() {
  static auto* const one = new Spare;  // NOLINT(cppcoreguidelines-owning-memory)
  return *one;
}

// Null where there is no memory.
std::shared_ptr<void> allocate_huge(std::size_t bytes) {
  void* memory = spare().take(bytes);
  if (memory == nullptr) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    madvise(memory, bytes, MADV_HUGEPAGE);  // advice: refused, pages are just small
  }
  return {memory, [bytes](void* p) { spare().give(p, bytes); }};
}

}  // namespace

PreparedMemory::PreparedMemory(std::size_t bytes) : bytes_(bytes) {
  data_ = bytes < kHugePage ? allocate_small(bytes) : allocate_huge(bytes);
  if (data_ == nullptr) {
    throw Error(ErrorKind::out_of_memory, "twell::PreparedMemory",
                concat("cannot allocate ", bytes, " bytes for a weight"));
  }
}

}  // namespace twell
