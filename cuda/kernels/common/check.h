// CUDA calls that fail: a twell::Error that names the call and where it stands.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "twell/status.h"

namespace twell::cuda {

inline void check_call(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) [[likely]]
    return;
  // The error stays with the thread until it is read; the caller's next call must not meet it.
  (void)cudaGetLastError();
  const std::string path(file);
  const auto source = path.rfind("src/");
  throw Error(
      status == cudaErrorMemoryAllocation ? ErrorKind::out_of_memory : ErrorKind::environment, call,
      (source == std::string::npos ? path : path.substr(source)) + ":" + std::to_string(line) +
          ": " + cudaGetErrorName(status) + ": " + cudaGetErrorString(status));
}

#define TWELL_CUDA_CHECK(call) ::twell::cuda::check_call(call, #call, __FILE__, __LINE__)

}  // namespace twell::cuda
