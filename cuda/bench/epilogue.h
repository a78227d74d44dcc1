// What a GEMM of cublasLt does to its result before it writes it.
#pragma once

#include <cstdint>

namespace twell::bench {

// A mask has a bit for each element of the result, in rows of mask_stride(columns) bits.
enum class Epilogue { none, relu, relu_mask };
constexpr const char* name_of(Epilogue epilogue) {
  constexpr const char* kNames[] = {"plain", "relu", "mask"};
  return kNames[static_cast<int>(epilogue)];
}

constexpr std::int64_t mask_stride(std::int64_t columns) {
  constexpr std::int64_t kMultiple = 128;  // as cublasLt has it
  return (columns + kMultiple - 1) / kMultiple * kMultiple;
}

}  // namespace twell::bench
