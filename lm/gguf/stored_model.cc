#include "gguf/stored_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "files/atomic_file.h"
#include "files/file_error.h"
#include "gguf/model_config.h"
#include "gguf/tokenizer_files.h"

namespace twell::io {
namespace {

// Files that are not a whole model.
void refuse_parts(const GgufFile& file) {
  const GgufMetadata& values = file.metadata();
  if (values.integer("split.count", 0, UINT16_MAX, 0) > 1) {
    fail_unsupported(file.name(),
                     "is one of several files of a model: put them together with "
                     "llama-gguf-split --merge");
  }
  if (const auto type = values.string("general.type", "model"); type != "model") {
    fail_unsupported(file.name(), "holds a {}, expected a model", in_quotes(type));
  }
}

}  // namespace

StoredModel::StoredModel(const std::filesystem::path& file, bool allow_unknown) : file_(file) {
  refuse_parts(file_);
  const GgufArchitecture& as =
      gguf_architecture(file_.metadata().string("general.architecture"), file_.name());
  config_ = config_of(file_, as, allow_unknown);
  std::set<std::string> used = {kRopeFactors};
  for (ModelTensor& tensor : tensors_of(config_, as)) {
    const GgufTensor* stored = file_.find(tensor.gguf);
    if (stored == nullptr) fail_file(file_.name(), "has no tensor {}", in_quotes(tensor.gguf));
    if (stored->shape != tensor.shape) {
      fail_file(file_.name(), "tensor {} has the shape {}, expected {}", in_quotes(tensor.gguf),
                in_brackets(stored->shape), in_brackets(tensor.shape));
    }
    if (!tensor.is_matrix() && is_quantised(stored->type)) {
      fail_unsupported(file_.name(), "tensor {} is a vector in {}, which is not supported",
                       in_quotes(tensor.gguf), layout_of(stored->type).name);
    }
    used.insert(tensor.gguf);
    tensors_.push_back({std::move(tensor), stored});
  }
  for (const GgufTensor& tensor : file_.tensors()) {
    if (allow_unknown || used.contains(tensor.name)) continue;
    fail_unsupported(file_.name(),
                     "tensor {} is none of a {} model's (--allow-unused leaves it out)",
                     in_quotes(tensor.name), config_.architecture->name);
  }
}

double StoredModel::bytes_a_number() const {
  double bytes = 0, numbers = 0;
  for (const auto& [tensor, stored] : tensors_) {
    bytes += static_cast<double>(stored->end - stored->begin);
    numbers += static_cast<double>(tensor.rows() * tensor.columns());
  }
  return bytes / numbers;
}

const std::byte* StoredModel::row(const StoredTensor& tensor, std::int64_t row) const {
  const GgufTensor& stored = *tensor.stored;
  const std::uint64_t bytes = tensor.tensor.is_matrix()
                                  ? stored.row_bytes()
                                  : static_cast<std::uint64_t>(layout_of(stored.type).bytes);
  return file_.data(stored) + static_cast<std::uint64_t>(tensor.row_in_file(row)) * bytes;
}

SafeDType float_type_of(const std::vector<StoredTensor>& tensors) {
  std::set<BlockType> types;
  for (const StoredTensor& one : tensors) {
    if (one.tensor.of_block_matrix()) types.insert(one.stored->type);
  }
  if (std::ranges::any_of(types, is_quantised)) return SafeDType::BF16;
  if (types.size() > 1 || types.contains(BlockType::f32)) return SafeDType::F32;
  return types.contains(BlockType::bf16) ? SafeDType::BF16 : SafeDType::F16;
}

void write_side_files(const GgufFile& file, const ModelConfig& config,
                      const std::filesystem::path& directory, bool tokenizer) {
  TokenizerFiles files;
  if (tokenizer) files = tokenizer_files_of(file.metadata(), config);
  save_config(directory, config);  // makes the directory
  if (tokenizer) {
    write_file_atomically(directory / "tokenizer.json", files.tokenizer);
    write_file_atomically(directory / "tokenizer_config.json", files.config);
  }
  const std::string generation = generation_config_of(config);
  if (!generation.empty()) write_file_atomically(directory / "generation_config.json", generation);
}

}  // namespace twell::io
