#include "cli/save_model.h"

#include <torch/types.h>

#include <filesystem>

#include "io/checkpoint.h"
#include "models/weights.h"
#include "train/run_directory.h"

namespace twell::cli {

void save_model(const std::string& directory, io::ModelConfig config,
                const lm::NamedTensors& tensors, const io::Tokenizer& tokenizer) {
  std::error_code ignored;
  if (std::filesystem::is_empty(directory, ignored)) std::filesystem::remove(directory, ignored);
  lm::AtomicDirectory target{directory};
  std::vector<io::TensorData> data;
  std::vector<at::Tensor> kept;  // contiguous copies of what is strided
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().contiguous());
    data.push_back(lm::tensor_data(name, kept.back()));
  }
  config.dtype = data.front().dtype == io::SafeDType::BF16 ? "bfloat16" : "float32";
  io::save_checkpoint(target.temporary(), data);
  tokenizer.save(target.temporary());
  io::save_config(target.temporary(), config);
  target.commit();
}

}  // namespace twell::cli
