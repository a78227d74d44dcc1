// A first byte chooses the reader: llama2.c's checkpoint or its tokenizer.
#include <cstdlib>

#include "io/llama2c.h"
#include "io/tokenizer.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace twell::io;
  if (size == 0) return 0;
  const std::span file(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  try {
    if (data[0] % 2 == 0) {
      for (const auto& tensor : parse_llama2c(file, "fuzz").tensors) {
        std::size_t bytes = sizeof(float);
        for (const auto dimension : tensor.shape) bytes *= static_cast<std::size_t>(dimension);
        if (tensor.offset + bytes > file.size()) std::abort();
      }
    } else {
      const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
      const Tokenizer tokenizer = Tokenizer::from_llama2c(bytes, "fuzz");
      for (const auto id : tokenizer.encode("Once upon a time, é\n")) {
        if (!tokenizer.id_to_token(id)) std::abort();
      }
    }
  } catch (const twell::Error&) {
  }
  return 0;
}
