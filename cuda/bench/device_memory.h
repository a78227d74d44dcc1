// Device memory of the benchmark.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/kernels/common/check.h"

namespace twell::bench {

template <class T>
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t size) : size_(size) {
    void* data = nullptr;
    TWELL_CUDA_CHECK(cudaMalloc(&data, std::max<std::size_t>(size_ * sizeof(T), 256)));
    data_ = static_cast<T*>(data);
    poison();
  }
  explicit DeviceMemory(const std::vector<T>& host) : DeviceMemory(host.size()) {
    TWELL_CUDA_CHECK(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceMemory() { (void)cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  T* get() const { return data_; }
  std::size_t size() const { return size_; }
  // NaN, so that what is not written shows.
  void poison() const { fill(0xff); }
  // Done when it returns: streams of their own do not wait for the default one.
  void fill(int byte) const {
    TWELL_CUDA_CHECK(cudaMemsetAsync(data_, byte, size_ * sizeof(T), nullptr));
    TWELL_CUDA_CHECK(cudaDeviceSynchronize());
  }
  std::vector<T> read(std::size_t count) const {
    std::vector<T> host(std::min(count, size_));
    TWELL_CUDA_CHECK(
        cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
  std::vector<T> read() const { return read(size_); }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace twell::bench
