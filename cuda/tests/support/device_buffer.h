// Device memory of a test, on a GPU or an emulated one.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cuda/kernels/common/check.h"
#include "tests/support/matrix.h"

namespace twell::test {

// Exactly `size` elements, all bits set at first: a NaN, an impossible count, an impossible slot.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t size) : size_(size) {
    if (size_ == 0) return;
    void* data = nullptr;
    TWELL_CUDA_CHECK(cudaMalloc(&data, size_ * sizeof(T)));
    data_ = static_cast<T*>(data);
    poison();
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    if (size_ == 0) return;
    TWELL_CUDA_CHECK(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~DeviceBuffer() { (void)cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  void poison() {
    if (size_ == 0) return;
    TWELL_CUDA_CHECK(cudaMemsetAsync(data_, 0xff, size_ * sizeof(T), nullptr));
  }
  std::vector<T> read() const {
    std::vector<T> out(size_);
    if (size_ != 0) {
      TWELL_CUDA_CHECK(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    }
    return out;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// A matrix and its copy on the device, with the same stride. The last row has no padding, so that
// reading past the matrix is reading past the allocation.
template <class T>
class DeviceMatrixOf {
 public:
  explicit DeviceMatrixOf(const TestMatrix<T>& host)
      : rows_(host.rows()),
        cols_(host.cols()),
        stride_(host.view().row_stride),
        buffer_(flat(host)) {}

  ConstMatrixView view() const {
    return {buffer_.data(), dtype_of<T>::value, rows_, cols_, stride_};
  }
  MatrixView mutable_view() { return {buffer_.data(), dtype_of<T>::value, rows_, cols_, stride_}; }
  void poison() { buffer_.poison(); }
  void write(const TestMatrix<T>& host) {
    const std::vector<T> values = flat(host);
    TWELL_CUDA_CHECK(cudaMemcpy(buffer_.data(), values.data(), values.size() * sizeof(T),
                                cudaMemcpyHostToDevice));
  }
  double value(const std::vector<T>& values, std::int64_t r, std::int64_t c) const {
    return static_cast<double>(
        static_cast<float>(values[static_cast<std::size_t>(r * stride_ + c)]));
  }
  std::vector<T> read() const { return buffer_.read(); }

 private:
  static std::vector<T> flat(const TestMatrix<T>& host) {
    if (host.rows() == 0) return {};
    const ConstMatrixView view = host.view();
    const auto* first = static_cast<const T*>(view.data);
    return {first, first + (view.rows - 1) * view.row_stride + view.cols};
  }

  std::int64_t rows_, cols_, stride_;
  DeviceBuffer<T> buffer_;
};

}  // namespace twell::test
