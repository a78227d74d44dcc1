// Tensors of a call as libtwell's views. What only a tensor has is checked here: device, dtype,
// strides, and the shapes that stand for packed weights; libtwell checks that shapes and dtypes fit
// together. Both throw twell::Error naming the operation and the argument, with what was expected
// and got; PyTorch turns it into a RuntimeError.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "twell/ffn.h"
#include "twell/packed.h"
#include "twell/screen.h"
#include "twell/tensor_view.h"

namespace twell::torch_ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// One tensor argument, with the names that its errors carry.
struct Argument {
  const char* operation;
  const char* name;
  const Tensor& tensor;
  const Tensor* gpu = nullptr;  // of a call on a GPU: a tensor that lies there
};

[[noreturn]] void fail(const char* operation, const char* argument, const std::string& message);

// "[3, 4]"
std::string list_of(const std::int64_t* values, std::size_t count);
std::string shape_of(const Tensor& tensor);
// Sizes but for the last.
std::vector<std::int64_t> leading_of(const Tensor& tensor);

// On the CPU, or on the call's GPU.
void require_device(const Argument& argument);
// bf16, and f32 on the CPU, f16 on a GPU. The argument's device is checked first.
DType dtype_of(const Argument& argument);
DType dtype_of(const char* operation, const char* argument, ScalarType type, bool on_gpu);
ScalarType scalar_type_of(DType dtype);

// The address of `tensor`, which is the argument's or a copy of it: a multiple of an element's
// size.
const void* elements_of(const Argument& argument, const Tensor& tensor, DType dtype);

// A weight [rows, cols]: 2-D, unit stride along its columns. Weights are never copied here: the
// copy would be repeated by every call.
ConstMatrixView matrix_of(const Argument& argument);

// Activations [..., D] as rows [M, D]. Strides that no matrix view can express are copied away.
struct Rows {
  Tensor tensor;  // keeps the viewed memory alive
  ConstMatrixView view;
};
Rows rows_of(const Argument& argument);

// The shape that pack_weight of any device gives a [rows, cols] weight: [rows, n, 1]
// (packed_extent).
std::vector<std::int64_t> packed_shape(WeightType type, std::int64_t rows, std::int64_t cols);
// A weight says itself what it is, so that no operator is told: a matrix, one of codes (int8 or, as
// uint8, int4: twell/coded_matrix.h), whose scales are of what the argument's are, or what
// pack_weight made of one. On a GPU that has other contents than panels (cuda/torch/cuda_call.h).
WeightView weight_of(const Argument& argument, ScaledBy scaled_by = ScaledBy::row);
// One that pack_weight made.
WeightView packed_of(const Argument& argument);
// What screen_weight made of a [rows, cols] matrix.
ScreenView screen_of(const Argument& argument, std::int64_t rows, std::int64_t cols);

// The one of `known` that has this name; `remark` on them is for the error.
Activation activation_named(const char* operation, const char* argument,
                            std::span<const Activation> known, const char* remark,
                            const std::string& name);
// `threshold` must be finite and not negative, and 0 where the activation has none.
ActivationSpec activation_of(const char* operation, const std::string& name, double threshold);
// The first `hot` of so many neurons.
void require_hot(const char* operation, std::int64_t hot, std::int64_t neurons);

// A tensor that a call makes on the device of `like`, with the names that its errors carry.
struct Output {
  const char* operation;
  const char* name;
  const Tensor& like;
};
// Uninitialised, and of zeros. ErrorKind::out_of_memory where the allocator refuses.
Tensor new_empty(const Output& output, const std::vector<std::int64_t>& shape, ScalarType type);
Tensor new_zeros(const Output& output, const std::vector<std::int64_t>& shape, ScalarType type);
// y [..., cols] for x [..., D].
Tensor new_rows(const Argument& x, std::int64_t cols, DType dtype);
// The argument's elements one after the other, in new memory where they are not so already.
Tensor contiguous_copy(const Argument& argument);
// A contiguous tensor of two dimensions, or of more taken as [product of the leading ones, last].
MatrixView mutable_matrix(const Tensor& tensor, DType dtype, std::int64_t rows, std::int64_t cols);

}  // namespace twell::torch_ops
