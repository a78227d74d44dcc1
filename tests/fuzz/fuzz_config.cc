// Any bytes either are a valid configuration, which survives being written, or a twell::Error; and
// so of a generation_config.json beside it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "checkpoint/config.h"
#include "checkpoint/generation_config.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using twell::io::ModelConfig;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    ModelConfig config = ModelConfig::from_json(text, "fuzz");
    config.sparse_lm = false;     // written as the plain architecture
    config.weights_file.clear();  // and with the usual name
    config.take_generation_config(text, "fuzz");
    twell::io::GenerationConfig::from_json(text, "fuzz");
    if (!(ModelConfig::from_json(config.to_json(), "written") == config)) std::abort();
  } catch (const twell::Error& error) {
    if (error.operation() == "written") std::abort();
  }
  return 0;
}
