#include "models/convert.h"

#include <fmt/format.h>

#include <span>
#include <vector>

#include "io/checkpoint.h"
#include "io/llama2c.h"
#include "io/tokenizer.h"
#include "twell/status.h"

namespace twell::lm {

void convert_llama2c(const std::filesystem::path& checkpoint,
                     const std::filesystem::path& tokenizer, const std::filesystem::path& out) {
  const io::Llama2cFile file(checkpoint);
  if (!tokenizer.empty()) {
    // Read first: a wrong tokenizer must not leave half a directory behind.
    const auto words = io::Tokenizer::load(tokenizer);
    if (words.vocab_size() != file.config().vocab_size) {
      throw Error(ErrorKind::environment, tokenizer.string(),
                  fmt::format("has {} tokens, the checkpoint {} expects {}", words.vocab_size(),
                              checkpoint.string(), file.config().vocab_size));
    }
    std::filesystem::create_directories(out);
    words.save(out);
  }
  std::vector<io::TensorSpec> specs;
  for (const auto& tensor : file.tensors()) {
    specs.push_back({tensor.name, io::SafeDType::F32, tensor.shape});
  }
  io::CheckpointWriter writer(out, specs);
  for (const auto& tensor : file.tensors()) {
    const std::vector<float> values = file.values(tensor);
    writer.write(tensor.name, std::as_bytes(std::span(values)));
  }
  writer.commit();
  io::save_config(out, file.config());
}

}  // namespace twell::lm
