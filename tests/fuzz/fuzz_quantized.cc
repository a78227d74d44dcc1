// Any bytes (a quantization_config, a zero byte, a safetensors file) either are weights whose
// numbers are finite, or a twell::Error.
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/quantized_tensor.h"
#include "files/json_reader.h"
#include "files/note.h"
#include "memory_file.h"
#include "twell/status.h"

namespace {

using namespace twell::io;

void read(const Checkpoint& checkpoint, const std::string& module, const WeightScheme& scheme) {
  QuantizedTensor tensor(checkpoint, module, scheme);
  const auto count = static_cast<std::size_t>(tensor.rows() * tensor.columns());
  std::vector<std::int8_t> codes(count);
  std::vector<float> numbers(count),
      scales(static_cast<std::size_t>(tensor.rows()) * static_cast<std::size_t>(tensor.groups()));
  std::vector<std::uint16_t> bits(count);
  tensor.codes(0, tensor.rows(), codes.data());
  tensor.scales(0, tensor.rows(), scales.data());
  tensor.dequantize(0, tensor.rows(), bits.data());
  tensor.dequantize(0, tensor.rows(), numbers.data());
  for (std::size_t i = 0; i < count; ++i) {
    const float scale = scales[i / static_cast<std::size_t>(tensor.group())];
    if (!std::isfinite(numbers[i]) || numbers[i] != static_cast<float>(codes[i]) * scale) {
      std::abort();
    }
    if (scheme.bits == 4 && (codes[i] < -8 || codes[i] > 7)) std::abort();
    if ((bits[i] & 0x7F80U) == 0x7F80U) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = (set_note_sink([](const std::string&) {}), true);
  static_cast<void>(quiet);
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = all.find('\0');
  if (zero == all.npos) return 0;
  const std::string name = "fuzz";
  try {
    const Json document = parse_python_json(all.substr(0, zero), name);
    const auto config = QuantizationConfig::from_json(JsonObject(document, name));
    const Json written = Json::parse(config.to_json().dump());
    if (!(QuantizationConfig::from_json(JsonObject(written, name)) == config)) std::abort();
    const MemoryFile file(all.substr(zero + 1));
    const Checkpoint checkpoint(file.path());
    std::set<std::string> modules;
    for (const std::string& tensor : checkpoint.names()) {
      modules.insert(tensor.substr(0, tensor.rfind('.')));
    }
    for (const std::string& module : modules) {
      try {
        if (const auto scheme = config.scheme_of(module, "Linear", name)) {
          read(checkpoint, module, *scheme);
        }
      } catch (const twell::Error&) {
      }
    }
  } catch (const twell::Error&) {
  }
  return 0;
}
