#include <algorithm>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "files/file_error.h"

namespace twell::io {
namespace {

// The first element of [begin, end) whose exponent bits are all ones: NaN or infinity. Or `end`.
template <class Word>
std::int64_t first_not_finite(const std::byte* data, std::int64_t begin, std::int64_t end,
                              Word exponent) {
  const auto broken = [&](std::int64_t i) {
    Word word;  // tensors in a file may lie at odd addresses
    std::memcpy(&word, data + i * static_cast<std::int64_t>(sizeof word), sizeof word);
    return (word & exponent) == exponent;
  };
  // Whole blocks without a branch inside, so that the compiler uses vector instructions.
  constexpr std::int64_t kBlock = 4096;
  for (; begin < end; begin += kBlock) {
    const std::int64_t last = std::min(begin + kBlock, end);
    Word any = 0;
    for (std::int64_t i = begin; i < last; ++i) any = static_cast<Word>(any | Word{broken(i)});
    for (std::int64_t i = begin; any != 0 && i < last; ++i) {
      if (broken(i)) return i;
    }
  }
  return end;
}

}  // namespace

void expect_finite(const CheckpointTensor& tensor, std::int64_t begin, std::int64_t end) {
  const auto first = [&](auto exponent) {
    return first_not_finite(tensor.data, begin, end, exponent);
  };
  const SafeDType dtype = tensor.info->dtype;
  std::int64_t found = end;
  if (dtype == SafeDType::F64) found = first(std::uint64_t{0x7FF0000000000000});
  if (dtype == SafeDType::F32) found = first(std::uint32_t{0x7F800000});
  if (dtype == SafeDType::F16) found = first(std::uint16_t{0x7C00});
  if (dtype == SafeDType::BF16) found = first(std::uint16_t{0x7F80});
  if (found < end) {
    fail_file(tensor.file->path().string(),
              "tensor {} holds NaN or infinity (element {}); the file is damaged or the training "
              "that wrote it diverged",
              in_quotes(tensor.info->name), found);
  }
}

}  // namespace twell::io
