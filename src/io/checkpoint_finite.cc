#include <algorithm>
#include <cstring>
#include <optional>

#include "io/checkpoint.h"
#include "io/file_error.h"

namespace twell::io {
namespace {

// Position of the first element whose exponent bits are all ones: NaN or infinite.
template <class Word>
std::optional<std::uint64_t> first_not_finite(const CheckpointTensor& tensor, Word exponent) {
  const std::uint64_t count = tensor.info->bytes() / sizeof(Word);
  // Whole blocks without a branch inside, so that the compiler uses vector instructions.
  constexpr std::uint64_t kBlock = 4096;
  const auto load = [&](std::uint64_t i) {
    Word word;
    std::memcpy(&word, tensor.data + i * sizeof(Word), sizeof word);
    return word;
  };
  for (std::uint64_t begin = 0; begin < count; begin += kBlock) {
    const std::uint64_t end = std::min(begin + kBlock, count);
    Word bad = 0;
    for (std::uint64_t i = begin; i < end; ++i) {
      bad = static_cast<Word>(bad | static_cast<Word>((load(i) & exponent) == exponent));
    }
    if (bad == 0) continue;
    for (std::uint64_t i = begin; i < end; ++i) {
      if ((load(i) & exponent) == exponent) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

void expect_finite(const CheckpointTensor& tensor) {
  const SafeDType dtype = tensor.info->dtype;
  std::optional<std::uint64_t> found;
  if (dtype == SafeDType::F64) found = first_not_finite(tensor, 0x7FF0000000000000ULL);
  if (dtype == SafeDType::F32) found = first_not_finite(tensor, 0x7F800000U);
  if (dtype == SafeDType::F16) found = first_not_finite(tensor, std::uint16_t{0x7C00});
  if (dtype == SafeDType::BF16) found = first_not_finite(tensor, std::uint16_t{0x7F80});
  if (found) {
    fail_file(tensor.file->path().string(), "tensor {} holds NaN or infinity (element {})",
              in_quotes(tensor.info->name), *found);
  }
}

}  // namespace twell::io
