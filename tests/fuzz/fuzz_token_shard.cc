// Any bytes either are a shard of the length that its header says, or a twell::Error.
#include <cstdlib>

#include "tokenizer/token_shard.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const auto header = twell::io::parse_token_shard(file, "fuzz");
    if (header.count * header.bytes_per_id != size - 64) std::abort();
  } catch (const twell::Error&) {
  }
  return 0;
}
