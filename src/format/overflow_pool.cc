#include "format/overflow_pool.h"

namespace twell {

OverflowPool::OverflowPool(std::size_t record_bytes) : record_bytes_(record_bytes) {}

std::uint32_t OverflowPool::acquire() {
  const std::lock_guard lock(mutex_);
  records_.push_back(std::make_unique_for_overwrite<std::byte[]>(record_bytes_));
  return static_cast<std::uint32_t>(records_.size() - 1);
}

std::byte* OverflowPool::record(std::uint32_t index) const {
  const std::lock_guard lock(mutex_);
  return records_[index].get();
}

void OverflowPool::clear() { records_.clear(); }

}  // namespace twell
