// Any bytes either are a consistent file or a twell::Error: no crash, no other exception.
#include <cstdlib>

#include "checkpoint/safetensors.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto header = twell::io::parse_safetensors(file, "fuzz");
    // What is accepted covers the file exactly, tensor by tensor.
    std::uint64_t at = header.data_begin;
    for (const auto& tensor : header.tensors) {
      std::int64_t elements = 1;
      for (const auto dimension : tensor.shape) elements *= dimension;
      if (tensor.begin != at || tensor.elements() != elements) std::abort();
      at = tensor.end;
    }
    if (at != size) std::abort();
  } catch (const twell::Error&) {
  }
  return 0;
}
