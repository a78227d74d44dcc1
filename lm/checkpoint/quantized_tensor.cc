#include "checkpoint/quantized_tensor.h"

#include <bit>
#include <cstring>

#include "files/file_error.h"
#include "twell/half.h"

namespace twell::io {
namespace {

constexpr std::int64_t kWordBits = 32;
constexpr float kLargestCodeScale = 0x1p120F;  // times a code of 8 bits still finite in bf16

template <class T>
T load(const std::byte* data, std::int64_t index) {
  T out;  // tensors in a file may lie at odd addresses
  std::memcpy(&out, data + index * static_cast<std::int64_t>(sizeof out), sizeof out);
  return out;
}

float float_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

float scale_at(const CheckpointTensor& scales, std::int64_t index) {
  switch (scales.info->dtype) {
    case SafeDType::BF16:
      return float_of_bf16(load<std::uint16_t>(scales.data, index));
    case SafeDType::F16:
      return float_of_half(load<std::uint16_t>(scales.data, index));
    default:
      return load<float>(scales.data, index);
  }
}

// Finite numbers, or what overflows to infinity.
std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

// Tensors that other layouts, or schemes that are refused, put beside or in place of ours.
void refuse_other_layouts(const Checkpoint& checkpoint, const std::string& module) {
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"weight_zero_point", "asymmetric weights (with zero points) are"},
      {"weight_g_idx", "groups in the order of activations (g_idx) are"},
      {"weight_global_scale", "scales of scales (fp4) are"},
      {"input_scale", "quantised activations are"},
      {"qweight", "the layouts of AWQ and GPTQ are"},
  };
  for (const auto& [suffix, what] : kOthers) {
    const std::string name = module + "." + suffix;
    if (!checkpoint.contains(name)) continue;
    fail_unsupported(checkpoint.at(name).file->path().string(), "tensor {}: {} not supported",
                     in_quotes(name), what);
  }
}

}  // namespace

std::int64_t packed_words(std::int64_t columns, int bits) {
  return (columns * bits + kWordBits - 1) / kWordBits;
}

void pack_codes(std::span<const std::int8_t> codes, int bits, std::byte* words) {
  const auto bytes =
      static_cast<std::size_t>(packed_words(std::ssize(codes), bits)) * (kWordBits / 8);
  const int per_byte = 8 / bits, offset = 1 << (bits - 1);
  for (std::size_t byte = 0; byte < bytes; ++byte) {
    unsigned value = 0;
    for (int part = 0; part < per_byte; ++part) {
      const std::size_t i = byte * static_cast<std::size_t>(per_byte) + static_cast<unsigned>(part);
      if (i < codes.size()) value |= static_cast<unsigned>(codes[i] + offset) << (part * bits);
    }
    words[byte] = static_cast<std::byte>(value);
  }
}

QuantizedTensor::QuantizedTensor(const Checkpoint& checkpoint, const std::string& module,
                                 const WeightScheme& scheme)
    : scheme_(scheme) {
  refuse_other_layouts(checkpoint, module);
  expect_codes(checkpoint, module);
  expect_scales(checkpoint, module);
}

void QuantizedTensor::expect_codes(const Checkpoint& checkpoint, const std::string& module) {
  const std::string name = module + (scheme_.packed ? ".weight_packed" : ".weight");
  const std::string other = module + (scheme_.packed ? ".weight" : ".weight_packed");
  if (checkpoint.contains(other)) {
    const CheckpointTensor stored = checkpoint.at(other);
    fail_file(stored.file->path().string(),
              "tensor {} is {}, but config.json (quantization_config) says {} in {}: one of the "
              "files belongs to another model",
              in_quotes(other), name_of(stored.info->dtype), text_of(scheme_), in_quotes(name));
  }
  codes_ = checkpoint.at(name);
  const std::string file = codes_.file->path().string();
  const SafeDType expected = scheme_.packed ? SafeDType::I32 : SafeDType::I8;
  const std::vector<std::int64_t>& shape = codes_.info->shape;
  if (codes_.info->dtype != expected || shape.size() != 2) {
    fail_file(file, "tensor {} is {} {}, expected {} of two dimensions ({} in config.json)",
              in_quotes(name), name_of(codes_.info->dtype), in_brackets(shape), name_of(expected),
              text_of(scheme_));
  }
  rows_ = shape[0];
  columns_ = shape[1];
  if (scheme_.packed) {
    shape_ = checkpoint.at(module + ".weight_shape");
    const SafeDType dtype = shape_.info->dtype;
    const bool wide = dtype == SafeDType::I64;
    if ((!wide && dtype != SafeDType::I32) || shape_.info->shape != std::vector<std::int64_t>{2}) {
      fail_file(shape_.file->path().string(), "tensor {} is {} {}, expected two whole numbers",
                in_quotes(shape_.info->name), name_of(dtype), in_brackets(shape_.info->shape));
    }
    const auto number = [&](std::int64_t i) {
      return wide ? load<std::int64_t>(shape_.data, i) : load<std::int32_t>(shape_.data, i);
    };
    constexpr std::int64_t kMost = std::int64_t{1} << 40;  // so that bits of a row are no overflow
    columns_ = number(1);
    if (number(0) != rows_ || columns_ < 0 || columns_ > kMost ||
        packed_words(columns_, scheme_.bits) != shape[1]) {
      fail_file(file,
                "tensor {} has the shape {}, expected [{}, {}]: codes of {} bits of the "
                "weight_shape [{}, {}]",
                in_quotes(name), in_brackets(shape), number(0),
                columns_ < 0 || columns_ > kMost ? 0 : packed_words(columns_, scheme_.bits),
                scheme_.bits, number(0), columns_);
    }
  }
  if (rows_ == 0 || columns_ == 0) fail_file(file, "tensor {} is empty", in_quotes(name));
}

void QuantizedTensor::expect_scales(const Checkpoint& checkpoint, const std::string& module) {
  scales_ = checkpoint.at(module + ".weight_scale");
  const TensorInfo& info = *scales_.info;
  const std::string file = scales_.file->path().string(), name = in_quotes(info.name);
  if (scheme_.group > 0 && columns_ % scheme_.group != 0) {
    fail_file(codes_.file->path().string(),
              "tensor {} has {} columns, no multiple of the groups of "
              "{} that config.json says",
              in_quotes(codes_.info->name), columns_, scheme_.group);
  }
  groups_ = scheme_.group > 0 ? columns_ / scheme_.group : 1;
  if (info.dtype != SafeDType::BF16 && info.dtype != SafeDType::F16 &&
      info.dtype != SafeDType::F32) {
    fail_file(file, "tensor {} is {}; scales must be BF16, F16 or F32", name, name_of(info.dtype));
  }
  const bool flat = scheme_.group == 0 && info.shape == std::vector{rows_};
  if (!flat && info.shape != std::vector{rows_, groups_}) {
    fail_file(file, "tensor {} has the shape {}, expected {}: {} of the weight {}", name,
              in_brackets(info.shape), in_brackets({rows_, groups_}), text_of(scheme_),
              in_brackets({rows_, columns_}));
  }
  for (std::int64_t i = 0; i < info.elements(); ++i) {
    const float scale = scale_at(scales_, i);
    if (scale > 0 && scale <= kLargestCodeScale) continue;
    fail_file(file, "tensor {} holds the scale {} (element {}), expected a positive, finite number",
              name, scale, i);
  }
}

WeightType QuantizedTensor::type() const {
  return scheme_.bits == 4 ? WeightType::int4 : WeightType::int8;
}

float QuantizedTensor::scale(std::int64_t index) const {
  const float stored = scale_at(scales_, index);
  if (scale_bits_ == 24) return stored;
  const auto bits = std::bit_cast<std::uint32_t>(stored);
  const auto dropped = static_cast<unsigned>(24 - scale_bits_);
  const std::uint32_t half = (1U << (dropped - 1U)) - 1U + (bits >> dropped & 1U);
  return std::bit_cast<float>((bits + half) >> dropped << dropped);
}

std::vector<std::string> QuantizedTensor::names() const {
  std::vector<std::string> out{codes_.info->name, scales_.info->name};
  if (shape_.info != nullptr) out.push_back(shape_.info->name);
  return out;
}

void QuantizedTensor::codes(std::int64_t begin, std::int64_t end, std::int8_t* out) const {
  const std::int64_t bytes = codes_.info->shape[1] * (scheme_.packed ? kWordBits / 8 : 1);
  for (std::int64_t row = begin; row < end; ++row, out += columns_) {
    const std::byte* from = codes_.data + row * bytes;
    if (!scheme_.packed) {
      std::memcpy(out, from, static_cast<std::size_t>(columns_));
    } else if (scheme_.bits == 8) {  // an offset of 128 turns the upper bit alone over
      for (std::int64_t i = 0; i < columns_; ++i) {
        out[i] = static_cast<std::int8_t>(from[i] ^ std::byte{0x80});
      }
    } else {
      for (std::int64_t i = 0; i < columns_; ++i) {
        const auto pair = std::to_integer<int>(from[i / 2]);
        out[i] = static_cast<std::int8_t>((i % 2 == 0 ? pair & 0xF : pair >> 4) - 8);
      }
    }
  }
}

void QuantizedTensor::scales(std::int64_t begin, std::int64_t end, float* out) const {
  for (std::int64_t i = begin * groups_; i < end * groups_; ++i) *out++ = scale(i);
}

void QuantizedTensor::dequantize(std::int64_t begin, std::int64_t end, float* out) const {
  std::vector<std::int8_t> row(static_cast<std::size_t>(columns_));
  const std::int64_t group = this->group();
  for (std::int64_t r = begin; r < end; ++r) {
    codes(r, r + 1, row.data());
    const std::int8_t* code = row.data();
    for (std::int64_t g = 0; g < groups_; ++g) {
      const float s = scale(r * groups_ + g);
      for (std::int64_t i = 0; i < group; ++i) *out++ = static_cast<float>(*code++) * s;
    }
  }
}

void QuantizedTensor::dequantize(std::int64_t begin, std::int64_t end, std::uint16_t* out) const {
  std::vector<float> row(static_cast<std::size_t>(columns_));
  for (std::int64_t r = begin; r < end; ++r) {
    dequantize(r, r + 1, row.data());
    for (const float value : row) *out++ = to_bf16(value);
  }
}

void QuantizedTensor::drop_pages() const {
  codes_.drop_pages();
  scales_.drop_pages();
}

}  // namespace twell::io
