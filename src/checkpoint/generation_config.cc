#include "checkpoint/generation_config.h"

#include "files/atomic_file.h"
#include "files/json_reader.h"
#include "files/mapped_file.h"

namespace twell::io {

GenerationConfig GenerationConfig::from_json(std::string_view text, const std::string& file) {
  const Json document = parse_python_json(text, file);
  const JsonObject json(document, file);
  const auto number = [&](const char* key, double low, double high) -> std::optional<double> {
    if (!json.has(key)) return {};
    return json.number(key, low, high);
  };
  GenerationConfig out;
  if (json.has("do_sample")) out.do_sample = json.boolean("do_sample");
  out.temperature = number("temperature", 0.0, 1e6);
  out.top_p = number("top_p", 0.0, 1.0);
  out.min_p = number("min_p", 0.0, 1.0);
  out.repetition_penalty = number("repetition_penalty", 1e-6, 1e6);
  if (json.has("top_k")) out.top_k = json.integer("top_k", 0, std::int64_t{1} << 40);
  return out;
}

GenerationConfig load_generation_config(const std::filesystem::path& directory) {
  const auto file = directory / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  return GenerationConfig::from_json(read_file(file, 16ULL << 20), file.string());
}

}  // namespace twell::io
