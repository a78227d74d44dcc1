// A weight that a checkpoint stores as integer codes and scales: `weight_packed` or `weight`,
// `weight_scale` and `weight_shape` of a module, in the layouts of compressed-tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization_config.h"
#include "twell/weight.h"

namespace twell::io {

// The matrix [rows, columns] of the numbers code · scale, where it is mapped; valid as long as the
// Checkpoint is. Codes are from -2^(bits - 1) to 2^(bits - 1) - 1, scales positive and finite.
class QuantizedTensor {
 public:
  // Of the module "model.layers.0.mlp.up_proj". Throws Error naming file and tensor: environment
  // where one is missing, has another type or shape than the scheme asks for, or a scale is not
  // positive and finite; unsupported where there are tensors of another layout. Reads all scales.
  QuantizedTensor(const Checkpoint& checkpoint, const std::string& module,
                  const WeightScheme& scheme);

  // Of the codes; int4 in groups of any size.
  WeightType type() const;
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t group() const { return columns_ / groups_; }  // columns that share a scale
  std::int64_t groups() const { return groups_; }            // scales of a row
  SafeDType scale_dtype() const { return scales_.info->dtype; }
  // From here on scales are rounded to so many significant bits, to nearest, ties to even: to 8, as
  // `transformers` takes those of a bf16 model, or to fewer.
  void round_scales(int bits) { scale_bits_ = bits; }
  std::uint64_t stored_bytes() const { return codes_.info->bytes() + scales_.info->bytes(); }
  // Of the tensors it is made of, as the checkpoint lists them.
  std::vector<std::string> names() const;

  // Of the rows [begin, end): codes [end - begin, columns], scales [end - begin, groups].
  void codes(std::int64_t begin, std::int64_t end, std::int8_t* out) const;
  void scales(std::int64_t begin, std::int64_t end, float* out) const;
  // code · scale, [end - begin, columns], rounded once to f32 or to bf16 (bits; nearest, ties to
  // even). In f32 nothing is lost where a scale has 16 bits or fewer; in bf16 where code and scale
  // have 8 together.
  void dequantize(std::int64_t begin, std::int64_t end, float* out) const;
  void dequantize(std::int64_t begin, std::int64_t end, std::uint16_t* out) const;

  void drop_pages() const;  // of the mapping

 private:
  void expect_codes(const Checkpoint& checkpoint, const std::string& module);
  void expect_scales(const Checkpoint& checkpoint, const std::string& module);

  float scale(std::int64_t index) const;

  WeightScheme scheme_;
  int scale_bits_ = 24;
  std::int64_t rows_ = 0, columns_ = 0, groups_ = 1;
  CheckpointTensor codes_, scales_, shape_;  // shape_ of packed codes alone
};

// 32-bit words of a row of packed codes.
std::int64_t packed_words(std::int64_t columns, int bits);
// A row of codes as QuantizedTensor reads it: packed_words() words, little-endian.
void pack_codes(std::span<const std::int8_t> codes, int bits, std::byte* words);

}  // namespace twell::io
