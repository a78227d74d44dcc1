// No reader allocates by a number that it has not checked against the file: the largest single
// allocation while reading a tiny hostile file stays small.
#include <algorithm>
#include <atomic>
#include <new>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/quantized_tensor.h"
#include "gguf/gguf_file.h"
#include "tests/support/files.h"
#include "tokenizer/token_shard.h"
#include "tokenizer/tokenizer.h"

namespace {

std::atomic<std::size_t> largest{0};
std::atomic<bool> watching{false};

void* counted(std::size_t size) {
  if (watching) largest = std::max(largest.load(), size);
  void* out = std::malloc(size == 0 ? 1 : size);
  if (out == nullptr) throw std::bad_alloc();
  return out;
}

}  // namespace

void* operator new(std::size_t size) { return counted(size); }
void* operator new[](std::size_t size) { return counted(size); }
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete[](void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { std::free(pointer); }

namespace twell::io {
namespace {

constexpr std::size_t kSmall = 1 << 20;

// Reading throws, and needed no more than a megabyte at once.
void expect_small(const std::string& what, const std::function<void()>& read) {
  largest = 0;
  watching = true;
  bool threw = false;
  try {
    read();
  } catch (const Error&) {
    threw = true;
  }
  watching = false;
  EXPECT_TRUE(threw) << what;
  EXPECT_LT(largest, kSmall) << what;
}

std::string little_endian(std::uint64_t value, std::size_t bytes) {
  return {reinterpret_cast<const char*>(&value), bytes};
}

TEST(Allocation, TheWatchWorks) {
  largest = 0;
  watching = true;
  std::string(2 * kSmall, 'x').swap(*std::make_unique<std::string>());
  watching = false;
  EXPECT_GE(largest, 2 * kSmall);
}

TEST(Allocation, FewCodesOfAHugeWeight) {
  const std::int32_t word = 0;
  const float scale = 1;
  for (const std::int64_t claim : {std::int64_t{9}, std::int64_t{1} << 40, std::int64_t{1} << 62}) {
    const TempDir dir;
    const std::int64_t shape[] = {1, claim};
    save_checkpoint(dir.path(), {{{"m.weight_packed", SafeDType::I32, {1, 1}}, &word},
                                 {{"m.weight_scale", SafeDType::F32, {1, 1}}, &scale},
                                 {{"m.weight_shape", SafeDType::I64, {2}}, shape}});
    const Checkpoint checkpoint(dir.path());
    expect_small("codes", [&] { QuantizedTensor(checkpoint, "m", {.bits = 4}); });
  }
}

TEST(Allocation, TinyFilesWithHugeClaims) {
  const TempDir dir;
  const auto file = [&](const std::string& bytes) {
    spit(dir / "f", bytes);
    return dir / "f";
  };
  for (const std::uint64_t claim : {100'000'000ULL, 1ULL << 32, 1ULL << 62, ~0ULL}) {
    expect_small("safetensors header",
                 [&] { SafetensorsFile(file(little_endian(claim, 8) + "{}")); });
    const std::string shape = R"({"t":{"dtype":"F32","shape":[)" + std::to_string(claim) +
                              R"(],"data_offsets":[0,)" + std::to_string(claim) + "]}}";
    expect_small("safetensors tensor",
                 [&] { SafetensorsFile(file(little_endian(shape.size(), 8) + shape)); });
    expect_small("token shard", [&] {
      TokenShard(file("TWELLTOK" + little_endian(1, 4) + little_endian(2, 4) +
                      little_endian(claim, 8) + little_endian(0, 8) + little_endian(9, 4) +
                      std::string(28, '\0')));
    });
  }
  for (const std::uint64_t claim : {1ULL << 32, 1ULL << 62, ~0ULL}) {
    const std::string begin = "GGUF" + little_endian(3, 4);
    const std::string array = little_endian(1, 8) + "k" + little_endian(9, 4);
    for (const std::string& rest :
         {little_endian(claim, 8) + little_endian(0, 8),
          little_endian(0, 8) + little_endian(claim, 8),
          little_endian(0, 8) + little_endian(1, 8) + little_endian(claim, 8),
          little_endian(0, 8) + little_endian(1, 8) + array + little_endian(8, 4) +
              little_endian(claim, 8),
          little_endian(0, 8) + little_endian(1, 8) + array + little_endian(10, 4) +
              little_endian(claim, 8)}) {
      expect_small("GGUF", [&] { GgufFile(file(begin + rest)); });
    }
  }
  expect_small("tokenizer ids", [&] {
    Tokenizer::from_json(R"({"model":{"vocab":{"a":2147483647},"merges":[]},)"
                         R"("pre_tokenizer":{"type":"ByteLevel"},"decoder":{"type":"ByteLevel"}})",
                         "f");
  });
  expect_small("nesting", [&] { ModelConfig::from_json(std::string(100'000, '['), "f"); });
}

}  // namespace
}  // namespace twell::io
