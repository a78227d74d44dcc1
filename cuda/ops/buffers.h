// What the operations keep in the caller's workspace, and where: one function says it to the plan,
// which measures, and to the call, which takes.
#pragma once

#include "cuda/ops/arguments.h"

namespace twell::cuda {

// Parts of a workspace, one after the other; or their sizes alone.
class Carver {
 public:
  Carver() = default;  // measures
  Carver(const char* operation, const char* argument, const Workspace& memory, std::size_t needed,
         bool trusted);
  template <class T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }
  std::size_t used() const { return used_; }

 private:
  void* take_bytes(std::size_t bytes);
  std::byte* data_ = nullptr;
  std::size_t used_ = 0;
};

// Of blocks that share a row.
struct SplitBuffers {
  std::uint32_t* tickets = nullptr;
  std::int64_t ticket_count = 0;
  float* partial = nullptr;
};
SplitBuffers carve_splits(Carver& carver, const GatherPlan& plan, std::int64_t rows);

struct FfnBuffers {
  DeviceTwell packed;
  SplitBuffers splits;
  // With a library's GEMM.
  void* library = nullptr;       // kLibraryWorkspace bytes
  void* gate = nullptr;          // dense, of a block of rows
  std::uint16_t* hot = nullptr;  // g of the hot neurons; h where there is no `up`
  std::uint16_t* up = nullptr;   // u of the hot neurons, then h, if up has a GEMM of its own
  float* sums = nullptr;         // y of the hot neurons
  RowQueue queue;
  std::uint32_t* zeroed = nullptr;  // counters of all parts of the rows, to be zero before
  std::int64_t zeroed_count = 0, part_counters = 0;
  float* partial = nullptr;
  std::int64_t gate_stride = 0, hot_stride = 0, sums_stride = 0;  // elements
};
// In training g of the hot neurons lies in what is kept.
FfnBuffers carve_ffn(Carver& carver, const FfnPlan& plan, bool trains = false);

}  // namespace twell::cuda
