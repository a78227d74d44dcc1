#include "cli/gguf_files.h"

#include <fmt/format.h>

#include <functional>
#include <optional>

#include "checkpoint/architecture.h"
#include "checkpoint/side_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "files/file_error.h"
#include "files/note.h"
#include "files/run_directory.h"
#include "gguf/export_model.h"
#include "gguf/import_model.h"
#include "tokenizer/tokenizer.h"

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

std::optional<io::BlockType> block_type_named(const std::string& name) {
  if (name == "auto") return {};
  return name == "q8_0"  ? io::BlockType::q8_0
         : name == "f16" ? io::BlockType::f16
         : name == "f32" ? io::BlockType::f32
                         : io::BlockType::bf16;
}

// Told while tensors are converted.
class TensorProgress {
 public:
  void operator()(std::int64_t done, std::int64_t total, const std::string& tensor) {
    if (!bar_) bar_.emplace("converting", total);
    bar_->update(done, tensor);
  }
  void finish() {
    if (bar_) bar_->finish();
  }

 private:
  std::optional<Progress> bar_;
};

// What became of which tensors, for people and for --json.
template <class Parts>
void report(const CommonOptions& common, const fs::path& out, const char* architecture,
            const io::ModelConfig& config, const Parts& parts, nlohmann::json results) {
  Table table({"stored as", "tensors", "numbers", "written as"});
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [types, part] : parts) {
    const auto& [from, to] = types;
    table.row({from, fmt::format("{}", part.tensors),
               fmt::format("{:.1f} million", static_cast<double>(part.numbers) / 1e6), to});
    list.push_back(
        {{"from", from}, {"to", to}, {"tensors", part.tensors}, {"numbers", part.numbers}});
  }
  common.say("{}{}: {}, {}, D = {}, H = {}, {}\n", table.to_string(common.colour()), out.string(),
             architecture, counted(config.num_hidden_layers, "layer"), config.hidden_size,
             config.intermediate_size, io::name_of(config.hidden_act));
  results["out"] = out.string();
  results["architecture"] = architecture;
  results["layers"] = config.num_hidden_layers;
  results["hidden_size"] = config.hidden_size;
  results["intermediate_size"] = config.intermediate_size;
  results["hidden_act"] = io::name_of(config.hidden_act);
  results["parts"] = list;
  common.write(results);
}

}  // namespace

void convert_from_gguf(const CommonOptions& common, const GgufConversion& conversion) {
  io::ImportOptions options;
  options.dtype = float_type(conversion.dtype);
  options.allow_unused = conversion.allow_unused;
  options.tokenizer = conversion.tokenizer.empty();
  TensorProgress progress;
  options.on_progress = std::ref(progress);
  io::AtomicDirectory target{conversion.out};
  const io::ImportedModel model = io::import_gguf(conversion.in, target.temporary(), options);
  if (!options.tokenizer) {
    io::Tokenizer::load(conversion.tokenizer).save(target.temporary());
    io::SideFiles sides;
    sides.replace_tokenizer(io::SideFiles::read(conversion.tokenizer));
    sides.save(target.temporary());
  }
  target.commit();
  progress.finish();
  report(common, conversion.out, model.config.architecture->name, model.config, model.parts,
         {{"rounded", model.rounded}});
  if (model.rounded) {
    io::note(fmt::format("{}: quantised weights are rounded to {}; --dtype f32 rounds none",
                         conversion.out.string(), model.config.dtype));
  }
}

void convert_to_gguf(const CommonOptions& common, const GgufConversion& conversion) {
  io::ExportOptions options;
  options.type = block_type_named(conversion.dtype);
  options.tokenizer = conversion.tokenizer;
  options.allow_unused = conversion.allow_unused;
  TensorProgress progress;
  options.on_progress = std::ref(progress);
  const io::ExportedModel model = io::export_gguf(conversion.in, conversion.out, options);
  progress.finish();
  report(common, conversion.out, model.architecture.c_str(), model.config, model.parts,
         nlohmann::json::object());
}

}  // namespace twell::cli
