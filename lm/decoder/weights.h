// Where a model's parameters come from: a mapped checkpoint or a random generator.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization_config.h"
#include "twell/ggml.h"
#include "twell/weight.h"

namespace twell::lm {

enum class ParameterKind : std::uint8_t {
  embedding,
  matrix,           // [out, in]
  residual_matrix,  // as matrix, and its output is added to the residual stream
  router,           // as matrix, and never kept as codes: each score is of one row
  norm,
  bias,
};

// A tensor of a model, and what checkpoints call it.
struct Parameter {
  std::string name = {};  // as in Hugging Face checkpoints; empty: the model has no such tensor
  std::vector<std::int64_t> shape = {};
  ParameterKind kind = ParameterKind::matrix;
  std::vector<std::string> other_names = {};  // of the same tensor in other layouts, tried in order
  bool maybe_transposed = false;              // may be stored as [in, out]: told by its shape
  bool is_down = false;                       // [D, H], of which columns are gathered
  at::Tensor tensor = {};  // undefined before it is loaded and once a converted copy replaces it
  // Of a matrix in ggml's blocks, whose tensor is uint8 [rows, bytes of a row]; none of others.
  std::optional<GgmlFormat> format = {};
};

// As operators take what a model may not have.
inline std::optional<at::Tensor> if_there(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Of a weight that is a matrix of codes and scales (twell/coded_matrix.h); none of others.
std::optional<WeightType> code_type(const at::Tensor& weight);
inline bool is_of_codes(const at::Tensor& weight) { return code_type(weight).has_value(); }
// Of a parameter of two dimensions: its name less ".weight".
std::string module_of(const Parameter& parameter);
// How config.json says that the parameter is stored; none: as floating-point numbers. `file` is for
// messages.
std::optional<io::WeightScheme> scheme_of(const io::QuantizationConfig& quantization,
                                          const Parameter& parameter, const std::string& file);

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  // A tensor of the parameter's shape, perhaps a transposed view. A quantised one is dequantised,
  // or, where codes are kept, a matrix of codes and scales (twell/coded_matrix.h). Throws
  // twell::Error naming the file.
  virtual at::Tensor take(const Parameter& parameter) = 0;
  // Where take() gives rows of blocks, their format.
  virtual std::optional<GgmlFormat> format_of(const Parameter& /*parameter*/) const { return {}; }
  // File and tensor, for messages.
  virtual std::string where(const Parameter& parameter) const { return parameter.name; }
  // The names of stored tensors that nothing took, ascending.
  virtual std::vector<std::string> unused() const { return {}; }
  // The tensor has been converted: its file pages may leave memory.
  virtual void drop_pages(const Parameter& /*parameter*/) {}
  // What take() dequantised so far: bytes as stored, and in memory.
  struct Dequantized {
    std::int64_t stored = 0, in_memory = 0;
    bool wide_scales =
        false;  // some would have stayed codes with CheckpointSourceOptions::round_scales
  };
  virtual Dequantized dequantized() const { return {}; }
  // As drop_pages(), and the model gives the tensor up, if it has it.
  void release(Parameter& parameter) {
    if (parameter.tensor.defined()) drop_pages(parameter);
    parameter.tensor = at::Tensor();
  }
};

struct CheckpointSourceOptions {
  std::optional<at::ScalarType> dtype = {};  // absent: of the embedding (f16, f64 become f32)
  bool own_copies = false;                   // writable memory instead of the mapping
  bool check_finite = true;
  bool keep_f16 = false;  // f16 stays as it is
  // Quantised matrices that libtwell multiplies with as they are stored are not dequantised: a
  // scale for each row, or 4 bits and scales that int4 has (twell/int4.h), but for down.
  bool keep_codes = false;
  // Scales of 4 bits, in groups of a multiple of 32, are rounded to those that int4 has.
  bool round_scales = false;
  std::optional<io::QuantizationConfig> quantization = {};
};

// Tensors of the wanted dtype that lie aligned to it are used where they are mapped (read only,
// the checkpoint is kept open as long as one of them lives); others are copied.
std::unique_ptr<ParameterSource> make_checkpoint_source(std::shared_ptr<io::Checkpoint> checkpoint,
                                                        const CheckpointSourceOptions& options);

// normal(0, std) matrices and embeddings, residual ones divided by √(2 layers); norms 1, biases 0.
std::unique_ptr<ParameterSource> make_random_source(at::ScalarType dtype, std::uint64_t seed,
                                                    std::int64_t layers, double std);

// As io::save_checkpoint takes it. The tensor, contiguous bf16, f16 or f32 on the CPU, outlives it.
io::TensorData tensor_data(const std::string& name, const at::Tensor& tensor);

// Uninitialised [rows, cols] in memory as prepared weights have it (PreparedMemory): huge pages
// where the system gives them.
at::Tensor allocate_weights(std::int64_t rows, std::int64_t cols, at::ScalarType dtype);
// The same with rows an odd number of cache lines apart: how a tier wants weights that it gathers
// in pieces of columns (TierTuning::gather_columns).
at::Tensor allocate_spread_weights(std::int64_t rows, std::int64_t cols, at::ScalarType dtype);
// [rows, cols] of any 2- or 4-byte type -> [cols, rows], on all threads; contiguous, or spread.
at::Tensor transposed_copy(const at::Tensor& matrix, bool spread = false);

}  // namespace twell::lm
