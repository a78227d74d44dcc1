// A GGUF file that is a whole model: its configuration, and where each tensor of it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/config.h"
#include "gguf/gguf_file.h"
#include "gguf/model_tensors.h"

namespace twell::io {

struct StoredTensor {
  ModelTensor tensor;
  const GgufTensor* stored;

  // The row of the file that is this one of the model. A vector's numbers are rows of their own.
  std::int64_t row_in_file(std::int64_t row) const {
    return tensor.heads == 0 ? row : row_in_gguf(row, tensor.shape[0] / tensor.heads);
  }
};

class StoredModel {
 public:
  // `allow_unknown`: keys of the metadata and tensors that are not known are left out. Throws Error
  // naming the file and the key or tensor.
  StoredModel(const std::filesystem::path& file, bool allow_unknown);
  StoredModel(const StoredModel&) = delete;
  StoredModel& operator=(const StoredModel&) = delete;

  const GgufFile& file() const { return file_; }
  const ModelConfig& config() const { return config_; }  // without dtype and quantisation
  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // in checkpoint order
  double bytes_a_number() const;                                         // mean of all
  // Where a row of a matrix, or a number of a vector, is.
  const std::byte* row(const StoredTensor& tensor, std::int64_t row) const;

 private:
  GgufFile file_;
  ModelConfig config_;
  std::vector<StoredTensor> tensors_;
};

// The floating-point type that a model of those linear layers has where their numbers are not kept
// as they are: its own, BF16 where any of them is quantised, and F32 where types differ.
SafeDType float_type_of(const std::vector<StoredTensor>& tensors);

// config.json, generation_config.json where the file names ids, and tokenizer.json with
// tokenizer_config.json where they are wanted, into a directory. `config`: the file's, as it is to
// be written.
void write_side_files(const GgufFile& file, const ModelConfig& config,
                      const std::filesystem::path& directory, bool tokenizer = true);

}  // namespace twell::io
