#include "cli/gguf_files.h"

#include <fmt/format.h>

#include <optional>

#include "checkpoint/architecture.h"
#include "checkpoint/side_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "files/file_error.h"
#include "files/note.h"
#include "gguf/import_model.h"
#include "tokenizer/tokenizer.h"
#include "train/run_directory.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

std::optional<io::SafeDType> float_type(const std::string& name) {
  if (name == "auto") return {};
  if (name == "q8_0") {
    io::fail_argument("--dtype q8_0",
                      "is for GGUF files; a directory has f32, f16 or bf16, and "
                      "codes by twell quantize");
  }
  return name == "f32"   ? io::SafeDType::F32
         : name == "f16" ? io::SafeDType::F16
                         : io::SafeDType::BF16;
}

nlohmann::json sizes_of(const io::ModelConfig& config) {
  return {{"layers", config.num_hidden_layers},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"hidden_act", io::name_of(config.hidden_act)}};
}

}  // namespace

void convert_from_gguf(const CommonOptions& common, const GgufConversion& conversion) {
  io::ImportOptions options;
  options.dtype = float_type(conversion.dtype);
  options.allow_unused = conversion.allow_unused;
  options.tokenizer = conversion.tokenizer.empty();
  std::optional<Progress> progress;
  options.on_progress = [&](std::int64_t done, std::int64_t total, const std::string& tensor) {
    if (!progress) progress.emplace("converting", total);
    progress->update(done, tensor);
  };
  lm::AtomicDirectory target{conversion.out};
  const io::ImportedModel model = io::import_gguf(conversion.in, target.temporary(), options);
  if (!options.tokenizer) {
    io::Tokenizer::load(conversion.tokenizer).save(target.temporary());
    io::SideFiles sides;
    sides.replace_tokenizer(io::SideFiles::read(conversion.tokenizer));
    sides.save(target.temporary());
  }
  target.commit();
  progress->finish();

  Table table({"in the file", "tensors", "numbers", "written as"});
  nlohmann::json parts = nlohmann::json::array();
  for (const auto& [types, part] : model.parts) {
    const auto& [from, to] = types;
    table.row({from, fmt::format("{}", part.tensors),
               fmt::format("{:.1f} million", static_cast<double>(part.numbers) / 1e6), to});
    parts.push_back(
        {{"from", from}, {"to", to}, {"tensors", part.tensors}, {"numbers", part.numbers}});
  }
  common.say("{}{}: a {} of {} layers, D = {}, H = {}, {}\n", table.to_string(),
             conversion.out.string(), model.config.architecture->name,
             model.config.num_hidden_layers, model.config.hidden_size,
             model.config.intermediate_size, io::name_of(model.config.hidden_act));
  if (model.rounded) {
    io::note(fmt::format("{}: quantised weights are rounded to {}; --dtype f32 rounds none",
                         conversion.out.string(), model.config.dtype));
  }
  nlohmann::json results = sizes_of(model.config);
  results["out"] = conversion.out.string();
  results["parts"] = parts;
  results["rounded"] = model.rounded;
  common.write(results);
}

}  // namespace twell::cli
