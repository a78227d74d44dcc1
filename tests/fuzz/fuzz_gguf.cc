// Any bytes either are a GGUF file whose tensors lie in it, or a twell::Error; and so are the
// configuration and the tokenizer in it, which then can be read.
#include <cstdlib>
#include <vector>

#include "files/note.h"
#include "gguf/gguf_file.h"
#include "gguf/model_config.h"
#include "gguf/tokenizer_files.h"
#include "memory_file.h"
#include "twell/status.h"

namespace {

using namespace twell::io;

void read_all(const GgufFile& file, std::size_t size) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.begin > tensor.end || tensor.end > size) std::abort();
    const BlockLayout& layout = layout_of(tensor.type);
    const std::int64_t blocks = tensor.rows() * (tensor.columns() / layout.numbers);
    std::vector<float> numbers(static_cast<std::size_t>(blocks * layout.numbers));
    dequantize(tensor.type, file.data(tensor), blocks, numbers.data());
    if (!is_symmetric(tensor.type)) continue;
    std::vector<std::int8_t> codes(numbers.size());
    std::vector<std::uint16_t> scales(static_cast<std::size_t>(blocks));
    take_codes(tensor.type, file.data(tensor), blocks, codes.data(), scales.data());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = (set_note_sink([](const std::string&) {}), true);
  static_cast<void>(quiet);
  try {
    const MemoryFile memory({reinterpret_cast<const char*>(data), size});
    const GgufFile file(memory.path());
    read_all(file, size);
    const GgufArchitecture& as =
        gguf_architecture(file.metadata().string("general.architecture"), file.name());
    const ModelConfig config = config_of(file, as, /*allow_unknown=*/true);
    config.validate();
    const TokenizerFiles tokenizer = tokenizer_files_of(file.metadata(), config);
    Tokenizer::from_json(tokenizer.tokenizer, "fuzz");
    ModelConfig::from_json(config.to_json(), "fuzz");
  } catch (const twell::Error&) {
  }
  return 0;
}
