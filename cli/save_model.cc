#include "cli/save_model.h"

#include <torch/types.h>

#include <filesystem>

#include "io/checkpoint.h"
#include "train/run_directory.h"

namespace twell::cli {

void save_model(const std::string& directory, const lm::Model& model,
                const io::Tokenizer& tokenizer,
                const std::function<at::Tensor(const at::Tensor&)>& changed,
                std::int64_t hidden_units) {
  std::error_code ignored;
  if (std::filesystem::is_empty(directory, ignored)) std::filesystem::remove(directory, ignored);
  lm::AtomicDirectory target{directory};
  const bool narrow = model.dtype() == at::kBFloat16;
  std::vector<io::TensorData> tensors;
  std::vector<at::Tensor> kept;  // contiguous copies of what was strided
  for (const auto& [name, parameter] : model.parameters()) {
    kept.push_back((changed ? changed(parameter) : parameter).detach().contiguous());
    io::TensorData tensor;
    tensor.name = name;
    tensor.dtype = narrow ? io::SafeDType::BF16 : io::SafeDType::F32;
    tensor.shape.assign(kept.back().sizes().begin(), kept.back().sizes().end());
    tensor.data = kept.back().const_data_ptr();
    tensors.push_back(std::move(tensor));
  }
  io::ModelConfig config = model.config();
  if (hidden_units > 0) config.intermediate_size = hidden_units;
  config.dtype = narrow ? "bfloat16" : "float32";
  io::save_checkpoint(target.temporary(), tensors);
  tokenizer.save(target.temporary());
  io::save_config(target.temporary(), config);
  target.commit();
}

}  // namespace twell::cli
