#include "decoder/weights.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <new>
#include <unordered_set>

#include "checkpoint/quantized_tensor.h"
#include "decoder/random.h"
#include "files/file_error.h"
#include "twell/coded_matrix.h"
#include "twell/int4.h"
#include "twell/packed.h"
#include "twell/status.h"
#include "twell/transpose.h"
#include "twell/tuning.h"

namespace twell::lm {
namespace {

at::ScalarType scalar_type(const io::TensorInfo& info, const std::string& file) {
  switch (info.dtype) {
    case io::SafeDType::F32:
      return at::kFloat;
    case io::SafeDType::BF16:
      return at::kBFloat16;
    case io::SafeDType::F16:
      return at::kHalf;
    case io::SafeDType::F64:
      return at::kDouble;
    default:
      throw Error(ErrorKind::unsupported, file,
                  fmt::format("tensor '{}' is {}; weights must be F64, F32, BF16 or F16", info.name,
                              name_of(info.dtype)));
  }
}

class CheckpointSource final : public ParameterSource {
 public:
  CheckpointSource(std::shared_ptr<io::Checkpoint> checkpoint,
                   const CheckpointSourceOptions& options)
      : checkpoint_(std::move(checkpoint)), options_(options) {}

  at::Tensor take(const Parameter& parameter) override {
    if (const auto quantized = find_quantized(parameter)) {
      at::Tensor kept;
      const bool multiplied = parameter.kind == ParameterKind::matrix ||
                              parameter.kind == ParameterKind::residual_matrix;
      if (options_.keep_codes && multiplied) {
        if (quantized->type() == WeightType::int4) kept = int4_of(*quantized, parameter);
        if (!kept.defined()) kept = int8_of(*quantized);
      }
      if (kept.defined()) return kept;
      if (options_.keep_codes && multiplied && quantized->type() == WeightType::int4 &&
          !parameter.is_down && quantized->group() % kInt4Group == 0) {
        dequantized_.wide_scales = true;
      }
      return dequantize(*quantized);
    }
    const io::CheckpointTensor found = find(parameter);
    taken_.insert(found.info->name);
    const std::string file = found.file->path().string();
    const bool transposed = is_transposed(parameter, *found.info, file);
    const at::ScalarType stored = scalar_type(*found.info, file);
    if (options_.check_finite) {
      at::parallel_for(
          0, found.info->elements(), 1 << 18,
          [&](std::int64_t begin, std::int64_t end) { io::expect_finite(found, begin, end); });
    }
    settle_dtype(stored);
    const at::Tensor tensor = mapped_or_copied(found, stored);
    if (options_.check_finite && stored != *options_.dtype) expect_converted(found, tensor);
    return transposed ? tensor.t() : tensor;
  }

  Dequantized dequantized() const override { return dequantized_; }

  void drop_pages(const Parameter& parameter) override {
    // Of a quantised one nothing is mapped any more.
    if (!scheme(parameter)) find(parameter).drop_pages();
  }

  std::vector<std::string> unused() const override {
    std::vector<std::string> out;
    std::ranges::copy_if(checkpoint_->names(), std::back_inserter(out),
                         [this](const std::string& name) { return !taken_.contains(name); });
    return out;
  }

 private:
  static constexpr std::int64_t kRowsATask = 64;

  void settle_dtype(at::ScalarType stored) {
    if (options_.dtype) return;
    const bool widened = stored == at::kDouble || (stored == at::kHalf && !options_.keep_f16);
    options_.dtype = widened ? at::kFloat : stored;
  }

  std::optional<io::WeightScheme> scheme(const Parameter& parameter) const {
    if (!options_.quantization) return {};
    return scheme_of(*options_.quantization, parameter, checkpoint_->path().string());
  }

  // The file's tensors of a parameter that config.json says is quantised.
  std::optional<io::QuantizedTensor> find_quantized(const Parameter& parameter) {
    const auto stored = scheme(parameter);
    if (!stored) return {};
    io::QuantizedTensor found(*checkpoint_, module_of(parameter), *stored);
    const std::vector<std::int64_t> shape{found.rows(), found.columns()};
    if (shape != parameter.shape) {
      throw Error(
          ErrorKind::environment, checkpoint_->path().string(),
          fmt::format("tensor '{}' has shape {}, expected {} from config.json; the two "
                      "files belong to different models",
                      parameter.name, io::in_brackets(shape), io::in_brackets(parameter.shape)));
    }
    for (const std::string& name : found.names()) taken_.insert(name);
    settle_dtype(scalar_type_of_scales(found));
    constexpr int kBf16Bits = 8, kInt4Bits = 5;
    const bool narrow = options_.round_scales && found.type() == WeightType::int4 &&
                        found.group() % kInt4Group == 0;
    if (narrow || *options_.dtype == at::kBFloat16)
      found.round_scales(narrow ? kInt4Bits : kBf16Bits);
    return found;
  }

  // A matrix of codes and scales of its rows, to be filled.
  template <class Byte>
  struct CodedRows {
    at::Tensor tensor;
    Byte* codes;
    float* scales;

    CodedRows(std::int64_t rows, std::int64_t row_bytes)
        : tensor(allocate_weights(coded_extent(rows, row_bytes, ScaledBy::row), row_bytes,
                                  c10::CppTypeToScalarType<Byte>::value)),
          codes(tensor.mutable_data_ptr<Byte>()),
          scales(reinterpret_cast<float*>(codes + coded_scales_at(rows, row_bytes))) {}
  };

  // Undefined where libtwell has no such weight.
  static at::Tensor int8_of(const io::QuantizedTensor& found) {
    if (found.groups() != 1) return {};
    const std::int64_t columns = found.columns();
    const CodedRows<std::int8_t> out(found.rows(), columns);
    at::parallel_for(0, found.rows(), kRowsATask, [&](std::int64_t begin, std::int64_t end) {
      found.codes(begin, end, out.codes + begin * columns);
      found.scales(begin, end, out.scales + begin);
    });
    found.drop_pages();
    return out.tensor;
  }

  // [a, b, …] in front -> [a, a, b, b, …]
  static void spread(std::vector<float>& values, std::int64_t each) {
    for (std::int64_t i = std::ssize(values) - 1; i > 0; --i) {
      values[static_cast<std::size_t>(i)] = values[static_cast<std::size_t>(i / each)];
    }
  }

  static at::Tensor int4_of(const io::QuantizedTensor& found, const Parameter& parameter) {
    if (parameter.is_down || found.group() % kInt4Group != 0) return {};
    const std::int64_t columns = found.columns();
    const std::int64_t alike = found.group() / kInt4Group;  // scales for each that is stored
    const std::int64_t row_bytes = bytes_of(WeightType::int4, columns);
    const CodedRows<std::uint8_t> out(found.rows(), row_bytes);
    std::atomic<bool> all = true;
    at::parallel_for(0, found.rows(), kRowsATask, [&](std::int64_t begin, std::int64_t end) {
      std::vector<std::int8_t> codes(static_cast<std::size_t>(columns));
      std::vector<float> scales(static_cast<std::size_t>(columns / kInt4Group));
      for (std::int64_t r = begin; r < end && all; ++r) {
        found.codes(r, r + 1, codes.data());
        found.scales(r, r + 1, scales.data());
        if (alike > 1) spread(scales, alike);
        const bool made = make_int4_row(codes.data(), scales.data(), columns,
                                        out.codes + r * row_bytes, out.scales + r);
        if (!made) all = false;
      }
    });
    if (!all) return {};
    found.drop_pages();
    return out.tensor;
  }

  at::Tensor dequantize(const io::QuantizedTensor& found) {
    const bool narrow = *options_.dtype == at::kBFloat16;
    at::Tensor out = at::empty({found.rows(), found.columns()},
                               at::TensorOptions(narrow ? at::kBFloat16 : at::kFloat));
    const auto fill = [&](auto* data) {
      at::parallel_for(0, found.rows(), kRowsATask, [&](std::int64_t begin, std::int64_t end) {
        found.dequantize(begin, end, data + begin * found.columns());
      });
    };
    if (narrow) {
      fill(static_cast<std::uint16_t*>(out.mutable_data_ptr()));
    } else {
      fill(out.mutable_data_ptr<float>());
    }
    found.drop_pages();
    out = out.to(*options_.dtype);
    dequantized_.stored += static_cast<std::int64_t>(found.stored_bytes());
    dequantized_.in_memory += static_cast<std::int64_t>(out.nbytes());
    return out;
  }

  static at::ScalarType scalar_type_of_scales(const io::QuantizedTensor& found) {
    return found.scale_dtype() == io::SafeDType::BF16  ? at::kBFloat16
           : found.scale_dtype() == io::SafeDType::F16 ? at::kHalf
                                                       : at::kFloat;
  }

  io::CheckpointTensor find(const Parameter& parameter) const {
    if (!checkpoint_->contains(parameter.name)) {
      for (const std::string& other : parameter.other_names) {
        if (checkpoint_->contains(other)) return checkpoint_->at(other);
      }
    }
    return checkpoint_->at(parameter.name);
  }

  // Numbers beyond the range of the type they are wanted in.
  static void expect_converted(const io::CheckpointTensor& from, const at::Tensor& tensor) {
    if (at::isfinite(tensor).all().item<bool>()) return;
    io::fail_file(from.file->path().string(),
                  "tensor {} holds numbers too large for {}; it is stored as {}",
                  io::in_quotes(from.info->name), c10::toString(tensor.scalar_type()),
                  io::name_of(from.info->dtype));
  }

  static bool is_transposed(const Parameter& parameter, const io::TensorInfo& info,
                            const std::string& file) {
    const auto& shape = parameter.shape;
    const bool as_listed = info.shape == shape;
    if (as_listed && parameter.maybe_transposed && shape[0] == shape[1]) {
      throw Error(ErrorKind::unsupported, file,
                  fmt::format("tensor '{}' is square {}, so whether it is stored transposed "
                              "cannot be told; write the checkpoint in the plain layout (model_type"
                              " llama or qwen2, [out, in] weights)",
                              info.name, io::in_brackets(info.shape)));
    }
    if (as_listed) return false;
    if (parameter.maybe_transposed && info.shape == std::vector{shape[1], shape[0]}) return true;
    throw Error(ErrorKind::environment, file,
                fmt::format("tensor '{}' has shape {}, expected {} from config.json; the two files "
                            "belong to different models",
                            info.name, io::in_brackets(info.shape), io::in_brackets(shape)));
  }

  at::Tensor mapped_or_copied(const io::CheckpointTensor& found, at::ScalarType stored) const {
    const at::ScalarType wanted = *options_.dtype;
    const io::TensorInfo& info = *found.info;
    const auto address = reinterpret_cast<std::uintptr_t>(found.data);
    const bool aligned = address % c10::elementSize(stored) == 0;
    if (info.elements() == 0) return at::empty(info.shape, at::TensorOptions(wanted));
    at::Tensor source;
    if (aligned) {
      // Nothing writes through this pointer: the mapping is read only.
      source = at::from_blob(
          const_cast<std::byte*>(found.data), info.shape,  // NOLINT(*-const-cast)
          [keep = checkpoint_](void*) {}, at::TensorOptions(stored));
      if (stored == wanted && !options_.own_copies) return source;
    } else {
      source = at::empty(info.shape, at::TensorOptions(stored));
      std::memcpy(source.mutable_data_ptr(), found.data, info.bytes());
    }
    at::Tensor copy = aligned || stored != wanted ? source.to(wanted, false, true) : source;
    found.drop_pages();
    return copy;
  }

  std::shared_ptr<io::Checkpoint> checkpoint_;
  CheckpointSourceOptions options_;
  std::unordered_set<std::string> taken_;
  Dequantized dequantized_;
};

class RandomSource final : public ParameterSource {
 public:
  RandomSource(at::ScalarType dtype, std::uint64_t seed, std::int64_t layers, double std)
      : dtype_(dtype), random_(seed), layers_(layers), std_(std) {}

  at::Tensor take(const Parameter& parameter) override {
    const at::TensorOptions options(dtype_);
    if (parameter.kind == ParameterKind::norm) return at::ones(parameter.shape, options);
    if (parameter.kind == ParameterKind::bias) return at::zeros(parameter.shape, options);
    const double std = parameter.kind == ParameterKind::residual_matrix
                           ? std_ / std::sqrt(2.0 * static_cast<double>(layers_))
                           : std_;
    at::Tensor out = at::empty(parameter.shape, at::TensorOptions(at::kFloat));
    auto* data = out.mutable_data_ptr<float>();
    // A generator per block, so that the numbers do not depend on the number of threads.
    constexpr std::int64_t kBlock = 1 << 16;
    const std::int64_t blocks = (out.numel() + kBlock - 1) / kBlock;
    const std::uint64_t tensor_seed = random_.next();
    at::parallel_for(0, blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t block = begin; block < end; ++block) {
        Random random(Random(tensor_seed ^ static_cast<std::uint64_t>(block)).next());
        const std::int64_t last = std::min((block + 1) * kBlock, out.numel());
        for (std::int64_t i = block * kBlock; i < last; ++i) {
          data[i] = static_cast<float>(std * random.normal());
        }
      }
    });
    return out.to(dtype_);
  }

 private:
  at::ScalarType dtype_;
  Random random_;
  std::int64_t layers_;
  double std_;
};

}  // namespace

std::optional<WeightType> code_type(const at::Tensor& weight) {
  if (weight.scalar_type() == at::kChar) return WeightType::int8;
  if (weight.scalar_type() == at::kByte) return WeightType::int4;
  return {};
}

std::string module_of(const Parameter& parameter) {
  constexpr std::string_view kSuffix = ".weight";
  return parameter.name.substr(0, parameter.name.size() - kSuffix.size());
}

std::optional<io::WeightScheme> scheme_of(const io::QuantizationConfig& quantization,
                                          const Parameter& parameter, const std::string& file) {
  switch (parameter.kind) {
    case ParameterKind::embedding:
      return quantization.scheme_of(module_of(parameter), "Embedding", file);
    case ParameterKind::matrix:
    case ParameterKind::residual_matrix:
    case ParameterKind::router:
      return quantization.scheme_of(module_of(parameter), "Linear", file);
    case ParameterKind::norm:
    case ParameterKind::bias:
      break;
  }
  return std::nullopt;
}

std::unique_ptr<ParameterSource> make_checkpoint_source(std::shared_ptr<io::Checkpoint> checkpoint,
                                                        const CheckpointSourceOptions& options) {
  return std::make_unique<CheckpointSource>(std::move(checkpoint), options);
}

std::unique_ptr<ParameterSource> make_random_source(at::ScalarType dtype, std::uint64_t seed,
                                                    std::int64_t layers, double std) {
  return std::make_unique<RandomSource>(dtype, seed, layers, std);
}

io::TensorData tensor_data(const std::string& name, const at::Tensor& tensor) {
  io::TensorData out;
  out.name = name;
  out.dtype = tensor.scalar_type() == at::kFloat      ? io::SafeDType::F32
              : tensor.scalar_type() == at::kBFloat16 ? io::SafeDType::BF16
                                                      : io::SafeDType::F16;
  out.shape = tensor.sizes().vec();
  out.data = tensor.const_data_ptr();
  return out;
}

at::Tensor allocate_weights(std::int64_t rows, std::int64_t cols, at::ScalarType dtype) {
  PreparedMemory memory(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols) *
                        c10::elementSize(dtype));
  void* const data = memory.mutable_data();
  return at::from_blob(
      data, {rows, cols}, [memory](void*) {}, at::TensorOptions(dtype));
}

at::Tensor allocate_spread_weights(std::int64_t rows, std::int64_t cols, at::ScalarType dtype) {
  const std::int64_t stride = spread_stride(cols, c10::elementSize(dtype));
  return allocate_weights(rows, stride, dtype).narrow(1, 0, cols);
}

at::Tensor transposed_copy(const at::Tensor& matrix, bool spread) {
  const at::Tensor in = matrix.contiguous();
  at::Tensor out = (spread ? allocate_spread_weights : allocate_weights)(in.size(1), in.size(0),
                                                                         in.scalar_type());
  // Of any numbers of the size.
  const DType words = in.element_size() == 2 ? DType::bf16 : DType::f32;
  transpose(ConstMatrixView(in.const_data_ptr(), words, in.size(0), in.size(1)),
            out.mutable_data_ptr(), out.stride(0));
  return out;
}

}  // namespace twell::lm
