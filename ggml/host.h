// The program that loads this library: whether it is one that the library was built for, and its
// own kernels for the CPU.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <memory>
#include <string>

struct ggml_threadpool;

namespace twell::ggml {

// What differs between the headers that this library was built with and the ggml that has loaded
// it, in one line; empty if nothing was found.
std::string host_differs();

// A weight in memory that the host's own kernels read.
class HostWeight {
 public:
  // `blocks`: as in a GGUF file. Throws Error if the host gives no memory.
  HostWeight(const ggml_tensor& like, const void* blocks);

  ggml_tensor* tensor() const { return tensor_; }

 private:
  ggml_context_ptr context_;
  ggml_backend_buffer_ptr buffer_;
  ggml_tensor* tensor_ = nullptr;
};

// Whether the host's CPU backend runs on OpenMP's threads, as ours do. A pool of its own instead
// waits for work in a loop, for 0.1 s after the last, and keeps a core from our threads.
bool host_has_openmp();

// The host's CPU backend, which computes single nodes on behalf of a backend of ours.
class HostCpu {
 public:
  HostCpu() = default;
  HostCpu(const HostCpu&) = delete;
  HostCpu& operator=(const HostCpu&) = delete;
  ~HostCpu();

  // `node` with `weight` in place of its first source.
  ggml_status compute(const ggml_tensor& node, const HostWeight& weight, int threads);

 private:
  void start();
  void take_threads(int threads);

  ggml_context_ptr context_;
  ggml_cgraph* graph_ = nullptr;
  ggml_backend_ptr cpu_;
  ggml_threadpool* pool_ = nullptr;  // where the host has no OpenMP
  int threads_ = 0;
};

}  // namespace twell::ggml
