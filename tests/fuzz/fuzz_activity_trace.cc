// Any bytes either are a trace whose rows ascend below H, or a twell::Error.
#include <cstdlib>

#include "files/activity_trace.h"
#include "twell/status.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const twell::io::ActivityTrace trace(file, "fuzz");
    const std::size_t ids = trace.token_ids().size();
    if (ids != 0 && (ids != trace.header().tokens || 4 * ids > size)) std::abort();
    for (std::uint32_t layer = 0; layer < trace.header().layers; ++layer) {
      const auto rows = trace.read(layer);
      if (rows.rows() != trace.header().tokens || rows.neurons.size() > size) std::abort();
      for (std::size_t i = 0; i < rows.rows(); ++i) {
        std::uint64_t next = 0;
        for (const std::uint32_t neuron : rows.row(i)) {
          if (neuron < next || neuron >= trace.header().neurons) std::abort();
          next = std::uint64_t{neuron} + 1;
        }
      }
    }
  } catch (const twell::Error&) {
  }
  return 0;
}
