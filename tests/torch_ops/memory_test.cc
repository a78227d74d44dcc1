// What torch.ops.twell says where the allocator refuses an output.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "twell/status.h"

namespace {

TEST(TorchMemory, ErrorNamesOperationOutputAndBytes) {
  ASSERT_NE(dlopen(TWELL_LIBRARY, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  // Only claims to be a packed weight of 2^30 x 2^30: its elements would be read after `weight` is
  // allocated, and no address space holds that.
  constexpr std::int64_t kSize = std::int64_t{1} << 30;
  alignas(64) static std::byte memory[64] = {};
  const at::Tensor packed =
      at::for_blob(memory, {kSize, kSize, 1}).options(at::kBFloat16).make_tensor();
  const auto unpack = c10::Dispatcher::singleton().findSchemaOrThrow("twell::unpack_weight", "");
  std::vector<c10::IValue> arguments = {packed};
  try {
    unpack.callBoxed(arguments);
    FAIL() << "two exabytes were allocated";
  } catch (const twell::Error& error) {
    EXPECT_EQ(error.kind(), twell::ErrorKind::out_of_memory);
    EXPECT_EQ(error.operation(), "twell::unpack_weight");
    EXPECT_NE(std::string(error.what())
                  .find("weight: no memory for 2305843009213693952 bytes on the CPU"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
