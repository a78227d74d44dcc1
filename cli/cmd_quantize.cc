// twell quantize: a model's linear layers as integers and scales, as compressed-tensors stores
// them.
#include <filesystem>
#include <optional>

#include "checkpoint/side_files.h"
#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "convert/quantize_model.h"
#include "decoder/prepared_file.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/run_directory.h"
#include "twell/weight.h"

namespace twell::cli {
namespace {

namespace fs = std::filesystem;

struct QuantizeCommand : ModelOptions {
  std::string out;
  std::string type;
  std::int64_t group = 0;  // 0: not given
  std::string head = "int8";
};

lm::QuantizeOptions options_of(const QuantizeCommand& o) {
  lm::QuantizeOptions out;
  out.bits = o.type == "int4" ? 4 : 8;
  out.group = o.group == 0 && out.bits == 4 ? kInt4Group : o.group;
  out.head_bits = o.head == "int8" ? 8 : o.head == "int4" ? 4 : 0;
  out.allow_unused = o.allow_unused;
  return out;
}

// As they are: the tokenizer may be one that is not read here.
void copy_side_files(const fs::path& from, const fs::path& to) {
  constexpr const char* kTokenizer = "tokenizer.json";
  const io::SideFiles sides = io::SideFiles::read(from);
  io::note_left_out(from, sides);
  sides.save(to);
  std::error_code ignored;
  fs::remove(to / lm::kPreparedFile, ignored);  // of other weights
  if (!fs::exists(from / kTokenizer, ignored)) return;
  io::write_file_atomically(to / kTokenizer, io::read_file(from / kTokenizer));
}

void print(const QuantizeCommand& o, const lm::QuantizedModel& model) {
  constexpr double kGiga = 1e9;
  Table table({"stored as", "tensors", "weights", "signal to rounding"});
  nlohmann::json parts = nlohmann::json::array();
  for (const auto& [scheme, part] : model.parts) {
    table.row({scheme, fmt::format("{}", part.tensors),
               fmt::format("{:.1f} million", static_cast<double>(part.weights) / 1e6),
               fmt::format("{:.2f} dB", part.error.decibels())});
    parts.push_back({{"scheme", scheme},
                     {"tensors", part.tensors},
                     {"weights", part.weights},
                     {"snr_db", part.error.decibels()}});
  }
  table.row({"as it was", fmt::format("{}", model.kept), "", ""});
  const auto before = static_cast<double>(model.bytes_before);
  const auto after = static_cast<double>(model.bytes_after);
  o.say("{}{}: {:.3f} GB, from {:.3f} GB\n", table.to_string(o.colour()), o.out, after / kGiga,
        before / kGiga);
  o.write({{"out", o.out},
           {"type", o.type},
           {"parts", parts},
           {"kept_tensors", model.kept},
           {"bytes_before", model.bytes_before},
           {"bytes_after", model.bytes_after}});
}

void run(QuantizeCommand& o) {
  check_output_directory("--out", o.out);
  const fs::path from = o.directory();
  lm::QuantizeOptions options = options_of(o);
  io::AtomicDirectory target{o.out};
  std::optional<Progress> progress;
  options.on_progress = [&](std::int64_t done, std::int64_t total, const std::string& tensor) {
    if (!progress) progress.emplace("quantising", total);
    progress->update(done, tensor);
  };
  const lm::QuantizedModel model = lm::quantize_model(from, target.temporary(), options);
  copy_side_files(from, target.temporary());
  io::save_config(target.temporary(), model.config);
  target.commit();
  progress->finish();
  print(o, model);
}

}  // namespace

void add_quantize(CLI::App& app) {
  auto [c, o] = add_command<QuantizeCommand>(
      app, "quantize",
      "Write a model with its linear layers as 8- or 4-bit integers and scales, for twell, "
      "transformers and vLLM",
      "twell quantize --model MODEL --type int4 --out MODEL-int4", run);
  add_model_option(c, *o);
  c.add_option("--type", o->type,
               "int8, or int4: of attention, gate and up; down has 8 bits in both")
      ->required()
      ->check(CLI::IsMember({"int8", "int4"}));
  c.add_option("--group", o->group,
               "Inputs of attention, gate and up that share a scale: 32, 64 or 128 (default: 32 of "
               "int4, all of int8)")
      ->check(CLI::IsMember({"32", "64", "128"}))
      ->default_str("")
      ->type_name("N");
  c.add_option("--head", o->head, "The output matrix: int8, int4, or bf16: as it is stored")
      ->check(CLI::IsMember({"int8", "int4", "bf16"}));
  c.add_option("--out", o->out, "Directory to make")->required()->type_name("DIR");
}

}  // namespace twell::cli
