#include "torch_ops/arguments.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <stdexcept>

#include "twell/coded_matrix.h"
#include "twell/status.h"

namespace twell::torch_ops {
namespace {

// The one distance between consecutive rows of the leading dimensions, or -1 if there is none.
std::int64_t common_row_stride(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const auto last = sizes.size() - 1;
  if (sizes[last] > 1 && strides[last] != 1) return -1;
  std::int64_t row_stride = -1;
  std::int64_t next = -1;  // stride that the next outer dimension must have
  for (std::size_t i = last; i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (row_stride < 0) {
      row_stride = strides[i];
    } else if (strides[i] != next) {
      return -1;
    }
    next = strides[i] * sizes[i];
  }
  if (row_stride < 0) return sizes[last];
  return row_stride >= sizes[last] ? row_stride : -1;
}

using torch::headeronly::IntHeaderOnlyArrayRef;

// In floating point, since shapes that nobody can allocate may exceed 2^63.
std::string bytes_of(IntHeaderOnlyArrayRef shape, ScalarType type) {
  auto bytes = static_cast<double>(aoti_torch_dtype_element_size(static_cast<std::int32_t>(type)));
  for (const std::int64_t size : shape) bytes *= static_cast<double>(size);
  char text[320];  // any double
  (void)std::snprintf(text, sizeof text, "%.0f", bytes);
  return text;
}

// make(), whose errors are the allocator's: shape and dtype have been checked. PyTorch's stable ABI
// tells of an error only which C function met it, and writes its message to standard error.
template <class F>
Tensor allocated(const Output& output, IntHeaderOnlyArrayRef shape, ScalarType type,
                 const F& make) {
  try {
    return make();
  } catch (const std::runtime_error&) {
    const Tensor& like = output.like;
    throw Error(
        ErrorKind::out_of_memory, std::string("twell::") + output.operation,
        std::string(output.name) + ": no memory for " + bytes_of(shape, type) + " bytes on " +
            (like.is_cuda() ? "cuda:" + std::to_string(like.get_device_index()) : "the CPU") +
            "; free some, or take fewer rows at a time");
  }
}

}  // namespace

void fail(const char* operation, const char* argument, const std::string& message) {
  throw Error(ErrorKind::invalid_argument, std::string("twell::") + operation,
              std::string(argument) + ": " + message);
}

std::string list_of(const std::int64_t* values, std::size_t count) {
  std::string out = "[";
  for (std::size_t i = 0; i < count; ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return out + "]";
}

std::vector<std::int64_t> leading_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return {sizes.begin(), sizes.end() - 1};
}

std::string shape_of(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  return list_of(sizes.data(), sizes.size());
}

void require_device(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  if (argument.gpu == nullptr ? !tensor.is_cpu() : !tensor.is_cuda()) {
    fail(argument.operation, argument.name,
         argument.gpu == nullptr
             ? "expected a CPU tensor, as the other arguments are; move it with .cpu()"
             : "expected a CUDA tensor, as the other arguments are; move it with .cuda()");
  }
  if (argument.gpu != nullptr && tensor.get_device_index() != argument.gpu->get_device_index()) {
    fail(argument.operation, argument.name,
         "expected a tensor on cuda:" + std::to_string(argument.gpu->get_device_index()) +
             " as the other arguments are, got cuda:" + std::to_string(tensor.get_device_index()));
  }
}

DType dtype_of(const Argument& argument) {
  require_device(argument);
  return dtype_of(argument.operation, argument.name, argument.tensor.scalar_type(),
                  argument.gpu != nullptr);
}

DType dtype_of(const char* operation, const char* argument, ScalarType type, bool on_gpu) {
  if (type == ScalarType::BFloat16) return DType::bf16;
  if (type == (on_gpu ? ScalarType::Half : ScalarType::Float)) {
    return on_gpu ? DType::f16 : DType::f32;
  }
  fail(operation, argument,
       std::string("expected dtype bfloat16 or ") + (on_gpu ? "float16 on a GPU" : "float32") +
           ", got " + torch::headeronly::toString(type));
}

ScalarType scalar_type_of(DType dtype) {
  return dtype == DType::f32    ? ScalarType::Float
         : dtype == DType::bf16 ? ScalarType::BFloat16
                                : ScalarType::Half;
}

const void* elements_of(const Argument& argument, const Tensor& tensor, DType dtype) {
  const void* data = tensor.const_data_ptr();
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(dtype) != 0) {
    fail(argument.operation, argument.name,
         "expected an address that is a multiple of " + std::to_string(size_of(dtype)) +
             " bytes, its element's size");
  }
  return data;
}

ConstMatrixView matrix_of(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  const DType dtype = dtype_of(argument);
  if (tensor.dim() != 2) {
    fail(argument.operation, argument.name,
         "expected a matrix [rows, columns], got shape " + shape_of(tensor));
  }
  const std::int64_t rows = tensor.size(0);
  const std::int64_t cols = tensor.size(1);
  std::int64_t row_stride = cols;
  if (rows > 1 && cols > 0) row_stride = tensor.stride(0);
  if ((cols > 1 && rows > 0 && tensor.stride(1) != 1) || row_stride < cols) {
    const auto strides = tensor.strides();
    fail(argument.operation, argument.name,
         "expected rows of adjacent elements, got shape " + shape_of(tensor) + " with strides " +
             list_of(strides.data(), strides.size()) + "; call .contiguous() once, outside");
  }
  return {elements_of(argument, tensor, dtype), dtype, rows, cols, row_stride};
}

Rows rows_of(const Argument& argument) {
  const DType dtype = dtype_of(argument);
  if (argument.tensor.dim() < 1) {
    fail(argument.operation, argument.name, "expected shape [..., columns], got a scalar");
  }
  Tensor tensor = argument.tensor;
  std::int64_t row_stride = common_row_stride(tensor);
  // On a GPU a copy is cheap, and rows at odd places would choose slower kernels.
  if (row_stride < 0 || (argument.gpu != nullptr && !tensor.is_contiguous())) {
    tensor = contiguous_copy(argument);
    row_stride = tensor.size(tensor.dim() - 1);
  }
  const auto sizes = tensor.sizes();
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
  return {tensor,
          {elements_of(argument, tensor, dtype), dtype, rows, sizes[sizes.size() - 1], row_stride}};
}

namespace {

const void* prepared_data(const Argument& argument, const char* maker) {
  const void* data = argument.tensor.const_data_ptr();
  if (!argument.tensor.is_contiguous() ||
      reinterpret_cast<std::uintptr_t>(data) % PreparedMemory::kElement != 0) {
    fail(argument.operation, argument.name,
         std::string("expected contiguous memory at a multiple of 4 bytes, as ") + maker +
             " returns; call .clone() once, outside");
  }
  return data;
}

}  // namespace

std::vector<std::int64_t> packed_shape(WeightType type, std::int64_t rows, std::int64_t cols) {
  return {rows, packed_extent(type, rows, cols), 1};
}

namespace {

// Of a weight of codes.
std::optional<WeightType> code_type(const Argument& argument) {
  if (argument.gpu != nullptr) return {};
  const ScalarType type = argument.tensor.scalar_type();
  if (type == ScalarType::Char) return WeightType::int8;
  if (type == ScalarType::Byte) return WeightType::int4;
  return {};
}

WeightView codes_of(const Argument& argument, WeightType type, ScaledBy by) {
  const Tensor& tensor = argument.tensor;
  const void* const data = prepared_data(argument, "join_codes");
  const auto view =
      tensor.dim() == 2 ? coded_view(type, data, tensor.size(0), tensor.size(1), by) : std::nullopt;
  if (!view) {
    const bool rows = in_blocks(type) || by == ScaledBy::row;
    fail(argument.operation, argument.name,
         std::string("expected codes and, behind them, the scales of their ") +
             (rows ? "rows" : "columns") + ", as join_codes makes of them, got " + name_of(type) +
             " " + shape_of(tensor));
  }
  return *view;
}

}  // namespace

WeightView weight_of(const Argument& argument, ScaledBy scaled_by) {
  const Tensor& tensor = argument.tensor;
  const std::optional<WeightType> codes = code_type(argument);
  if (codes) require_device(argument);
  if (tensor.dim() != 3) {
    return codes ? codes_of(argument, *codes, scaled_by) : matrix_of(argument);
  }
  const WeightType type = codes ? *codes : weight_type(dtype_of(argument));
  const std::int64_t rows = tensor.size(0);
  const std::int64_t cols = tensor.size(2) == 1 ? packed_cols(type, rows, tensor.size(1)) : -1;
  if (cols < 0) {
    fail(argument.operation, argument.name,
         "expected a matrix or what pack_weight makes of one, got shape " + shape_of(tensor));
  }
  return packed_view(prepared_data(argument, "pack_weight"), type, rows, cols);
}

WeightView packed_of(const Argument& argument) {
  if (argument.tensor.dim() != 3) {
    fail(argument.operation, argument.name,
         "expected what pack_weight makes, got shape " + shape_of(argument.tensor));
  }
  return weight_of(argument);
}

ScreenView screen_of(const Argument& argument, std::int64_t rows, std::int64_t cols) {
  const Tensor& tensor = argument.tensor;
  require_device(argument);
  const auto bytes = static_cast<std::int64_t>(screen_bytes(rows, cols));
  if (tensor.scalar_type() != ScalarType::Byte || tensor.dim() != 1 || tensor.size(0) != bytes) {
    fail(argument.operation, argument.name,
         "expected uint8 [" + std::to_string(bytes) + "], as screen_weight makes of [" +
             std::to_string(rows) + ", " + std::to_string(cols) + "], got " + shape_of(tensor));
  }
  return {prepared_data(argument, "screen_weight"), rows, cols};
}

void require_hot(const char* operation, std::int64_t hot, std::int64_t neurons) {
  if (hot < 0 || hot > neurons) {
    fail(operation, "hot",
         "expected 0 to " + std::to_string(neurons) + ", got " + std::to_string(hot));
  }
}

Activation activation_named(const char* operation, const char* argument,
                            std::span<const Activation> known, const char* remark,
                            const std::string& name) {
  const auto found =
      std::find_if(known.begin(), known.end(), [&](Activation a) { return name == name_of(a); });
  if (found != known.end()) return *found;
  std::string names;
  for (const Activation a : known) names += (names.empty() ? "" : ", ") + std::string(name_of(a));
  fail(operation, argument, "expected one of " + names + remark + ", got \"" + name + "\"");
}

ActivationSpec activation_of(const char* operation, const std::string& name, double threshold) {
  ActivationSpec spec;
  spec.kind =
      activation_named(operation, "activation", kActivations, ", the ones that yield zeros", name);
  if (!(threshold >= 0) || std::isinf(threshold)) {
    fail(operation, "threshold", "expected 0 or more, got " + std::to_string(threshold));
  }
  if (!has_threshold(spec.kind) && threshold != 0) {
    fail(operation, "threshold",
         "expected 0, since " + name + " has none, got " + std::to_string(threshold));
  }
  spec.threshold = static_cast<float>(threshold);
  return spec;
}

// Not the operator new_empty, which fills what it returns under torch.use_deterministic_algorithms:
// that would touch all of the lists of ffn_train, of which little is ever written.
Tensor new_empty(const Output& output, const std::vector<std::int64_t>& shape, ScalarType type) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) {
    // Unsigned, since shapes that nobody can allocate may exceed 2^63.
    strides[i - 1] =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(strides[i]) *
                                  static_cast<std::uint64_t>(std::max<std::int64_t>(shape[i], 1)));
  }
  return allocated(output, shape, type, [&] {
    std::int32_t device = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(output.like.get(), &device));
    AtenTensorHandle made = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(std::ssize(shape), shape.data(), strides.data(),
                                                    static_cast<std::int32_t>(type), device,
                                                    output.like.get_device_index(), &made));
    return Tensor(made);
  });
}

Tensor new_zeros(const Output& output, const std::vector<std::int64_t>& shape, ScalarType type) {
  return allocated(output, shape, type,
                   [&] { return torch::stable::new_zeros(output.like, shape, type); });
}

Tensor new_rows(const Argument& x, std::int64_t cols, DType dtype) {
  const auto sizes = x.tensor.sizes();
  std::vector<std::int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = cols;
  return new_empty({x.operation, "y", x.tensor}, shape, scalar_type_of(dtype));
}

Tensor contiguous_copy(const Argument& argument) {
  const Tensor& tensor = argument.tensor;
  return allocated({argument.operation, argument.name, tensor}, tensor.sizes(),
                   tensor.scalar_type(), [&] { return torch::stable::contiguous(tensor); });
}

MatrixView mutable_matrix(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols) {
  return {tensor.mutable_data_ptr(), dtype, rows, cols};
}

}  // namespace twell::torch_ops
