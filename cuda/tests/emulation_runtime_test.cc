// The emulated runtime, and what the operations make of two GPUs and of a stream that records.
#include <cuda_runtime.h>

#include <string>

#include "cuda/tests/support/layer.h"
#include "twell/status.h"

namespace twell {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace): the fixtures of this file

class EmulationRuntimeTest : public testing::Test {
 protected:
  ~EmulationRuntimeTest() override {
    emulation::set_capturing(false);
    emulation::set_device(0, 90);
    (void)cudaGetLastError();
  }
};

int device_of(const void* pointer) {
  cudaPointerAttributes attributes = {};
  TWELL_CUDA_CHECK(cudaPointerGetAttributes(&attributes, pointer));
  return attributes.type == cudaMemoryTypeDevice ? attributes.device : -1;
}

TEST_F(EmulationRuntimeTest, MemoryBelongsToTheDeviceThatWasCurrent) {
  emulation::set_device_count(2);
  EXPECT_EQ(cuda::device_count(), 2);
  const DeviceBuffer<char> first(10);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const DeviceBuffer<char> second(10);
  EXPECT_EQ(cuda::current_device().ordinal, 1);
  EXPECT_EQ(cuda::device(0).ordinal, 0);
  EXPECT_EQ(device_of(first.data()), 0);
  EXPECT_EQ(device_of(second.data() + 9), 1);
  EXPECT_EQ(device_of(second.data() + 10), -1);
  EXPECT_EQ(device_of(this), -1);
  for (const int ordinal : {-1, 2}) {
    EXPECT_EQ(cudaSetDevice(ordinal), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    EXPECT_THROW(cuda::device(ordinal), Error);
  }
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

struct Layer {
  explicit Layer(std::int64_t tokens)
      : host({tokens, 64, 1100}),
        x(host.x),
        gate(host.gate),
        up(host.up),
        down(host.down),
        y(TestMatrix<bf16>(tokens, 64)),
        plan(cuda::plan_ffn(cuda::current_device(), host.problem())),
        memory(plan.workspace_bytes) {}

  void run() {
    cuda::ffn(plan, x.view(), {gate.view(), up.view(), down.view()}, {}, y.mutable_view(),
              {memory.data(), memory.size()}, nullptr);
  }

  CudaLayer<bf16> host;
  DeviceMatrixOf<bf16> x, gate, up, down, y;
  cuda::FfnPlan plan;
  DeviceBuffer<std::byte> memory;
};

TEST_F(EmulationRuntimeTest, MemoryOfAnotherGpuIsRefused) {
  emulation::set_device_count(2);
  Layer layer(3);
  layer.run();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  try {
    layer.run();
    ADD_FAILURE() << "ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("of the current GPU 1, got memory of GPU 0"),
              std::string::npos)
        << error.what();
  }
  // Whose workspace alone is elsewhere.
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  Layer other(3);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const DeviceBuffer<std::byte> elsewhere(other.memory.size());
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_THROW(
      cuda::ffn(other.plan, other.x.view(), {other.gate.view(), other.up.view(), other.down.view()},
                {}, other.y.mutable_view(), {elsewhere.data(), elsewhere.size()}, nullptr),
      Error);
}

TEST_F(EmulationRuntimeTest, WhatWaitsOrAllocatesIsRefusedWhileAStreamRecords) {
  DeviceBuffer<char> memory(4);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusInvalidated;
  EXPECT_EQ(cudaStreamIsCapturing(nullptr, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  emulation::set_capturing(true);
  EXPECT_EQ(cudaStreamIsCapturing(nullptr, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  void* more = nullptr;
  char host = 0;
  for (const cudaError_t error :
       {cudaMalloc(&more, 4), cudaFree(memory.data()), cudaDeviceSynchronize(),
        cudaMemcpy(&host, memory.data(), 1, cudaMemcpyDeviceToHost)}) {
    EXPECT_EQ(error, cudaErrorStreamCaptureUnsupported);
  }
  EXPECT_EQ(cudaGetLastError(), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaMemsetAsync(memory.data(), 0, 4, nullptr), cudaSuccess);
  emulation::set_capturing(false);  // the memory is freed
}

// A call may be recorded: it neither waits nor allocates.
TEST_F(EmulationRuntimeTest, TheLayerCanBeRecorded) {
  for (const std::int64_t tokens : {3, 40}) {
    Layer layer(tokens);
    emulation::set_capturing(true);
    EXPECT_NO_THROW(layer.run());
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    emulation::set_capturing(false);
  }
}

TEST_F(EmulationRuntimeTest, LaunchesThatNoGpuTakesAreRefused) {
  const auto launch = [](dim3 grid, unsigned threads) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    void (*kernel)(int) = [](int) {};
    return cudaLaunchKernelEx(&config, kernel, 1);
  };
  EXPECT_EQ(launch(dim3(1, 1, 3), 32), cudaSuccess);
  EXPECT_EQ(launch(dim3(1, 1, 0), 32), cudaErrorInvalidValue);
  EXPECT_EQ(launch(dim3(1, 1, 65536), 32), cudaErrorInvalidValue);
  EXPECT_EQ(launch(dim3(1, 65536), 32), cudaErrorInvalidValue);
  EXPECT_EQ(launch(dim3(1), 1025), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace twell
