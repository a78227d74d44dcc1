// Overflow records: `tile` slots each, handed out in any order by any thread, never moved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace twell {

class OverflowPool {
 public:
  explicit OverflowPool(std::size_t record_bytes);

  // Number of a fresh record. Thread-safe.
  std::uint32_t acquire();
  // Valid until clear(). Thread-safe against acquire().
  std::byte* record(std::uint32_t index) const;
  void clear();

 private:
  std::size_t record_bytes_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> records_;
};

}  // namespace twell
