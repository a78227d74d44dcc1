#include "cli/model_files.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "checkpoint/checkpoint.h"
#include "decoder/weights.h"
#include "files/atomic_file.h"
#include "files/file_error.h"
#include "gguf/tokenizer_files.h"
#include "measure/model_compare.h"
#include "measure/reference.h"
#include "tokenizer/unicode.h"

namespace twell::cli {
namespace fs = std::filesystem;

std::string ModelOptions::directory() const {
  if (!fs::exists(model)) {
    io::fail_file("--model " + model,
                  "does not exist; expected a directory with config.json and model.safetensors, or "
                  "a GGUF file");
  }
  if (io::is_gguf(model)) {
    io::fail_file("--model " + model,
                  "is a GGUF file: twell convert FILE DIRECTORY makes a model's directory of it");
  }
  const fs::path found = io::resolve_model_directory(model);
  if (!fs::exists(found / "config.json")) {
    io::fail_file("--model " + model,
                  "has no config.json; expected a Hugging Face model directory, or a GGUF file");
  }
  return found.string();
}

std::shared_ptr<const io::StoredModel> ModelOptions::gguf() const {
  if (!gguf_ && fs::exists(model) && io::is_gguf(model)) {
    gguf_ = std::make_shared<const io::StoredModel>(model, allow_unused);
  }
  return gguf_;
}

io::ModelConfig ModelOptions::config() const {
  return gguf() ? gguf()->config() : io::load_config(directory());
}

io::Tokenizer ModelOptions::tokenizer() const {
  if (!gguf()) return io::Tokenizer::load(directory());
  const auto [json, config] = io::tokenizer_files_of(gguf()->file().metadata(), gguf()->config());
  return io::Tokenizer::from_json(json, model, config);
}

nlohmann::json ModelOptions::chat_files() const {
  if (!gguf()) return {{"directory", directory()}};
  const io::ModelConfig config = gguf()->config();
  const auto tokenizer = io::tokenizer_files_of(gguf()->file().metadata(), config);
  return {
      {"files", {{"config.json", config.to_json()}, {"tokenizer_config.json", tokenizer.config}}}};
}

std::optional<at::ScalarType> parse_dtype(const std::string& name) {
  if (name == "bf16") return at::kBFloat16;
  if (name == "f32") return at::kFloat;
  if (name == "f16") return at::kHalf;
  return std::nullopt;
}

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "f32" : dtype == at::kHalf ? "f16" : "bf16";
}

std::unique_ptr<lm::Model> ModelOptions::open(lm::FfnPath path, bool prepack) const {
  if (dtype == "f16" && device.is_cpu()) {
    io::fail_unsupported("--dtype f16", "is for --device cuda; use bf16 or f32");
  }
  lm::LoadOptions load;
  load.path = path;
  load.dtype = parse_dtype(dtype);
  load.prepack_dense = prepack;
  load.device = device;
  load.round_scales = round_scales;
  if (activations != "auto") load.round_inputs = activations == "int8";
  load.allow_unused = allow_unused;
  load.layers = layers;
  return lm::load_model(location(), load);
}

void require_zeros(const std::string& directory, const io::ModelConfig& config) {
  if (io::yields_zeros(config.hidden_act)) return;
  throw Error(ErrorKind::unsupported, "--model " + directory,
              fmt::format("its activation '{}' yields no zeros, so there is nothing sparse to "
                          "compare; take a model with one of {}",
                          io::name_of(config.hidden_act), io::sparse_names()));
}

LogitErrors logit_errors(ModelOptions options, lm::Model& dense, lm::Model& sparse,
                         std::span<const std::int64_t> tokens, bool reference) {
  const at::Tensor from_dense = lm::sample_logits(dense, tokens);
  const at::Tensor from_sparse = lm::sample_logits(sparse, tokens);
  LogitErrors out{lm::max_rel_err(from_sparse, from_dense), {}, {}};
  if (!reference) return out;
  options.dtype = "f32";
  if (options.gguf()) options.activations = "auto";  // of numbers there is nothing to round
  const at::Tensor exact = lm::sample_logits(*options.open(lm::FfnPath::dense), tokens);
  out.dense = lm::max_rel_err(from_dense, exact);
  out.sparse = lm::max_rel_err(from_sparse, exact);
  return out;
}

CLI::Option* add_model_option(CLI::App& command, ModelOptions& options) {
  CLI::Option* model = command
                           .add_option("--model", options.model,
                                       "Model directory (Hugging Face layout) or GGUF file")
                           ->required()
                           ->type_name("MODEL");
  add_unused_option(command, options.allow_unused);
  return model;
}

void add_unused_option(CLI::App& command, bool& allow) {
  command.add_flag("--allow-unused", allow,
                   "Ignore tensors that the model does not use, instead of an error");
}

void add_path_option(CLI::App& command, ModelOptions& options) {
  command
      .add_option("--path", options.path, "Path of the feed-forward layers: dense, sparse or auto")
      ->check(CLI::IsMember({"dense", "sparse", "auto"}));
}

void add_dtype_option(CLI::App& command, ModelOptions& options) {
  command.add_option("--dtype", options.dtype, "bf16, f32, auto (as stored), or f16 on a GPU")
      ->check(CLI::IsMember({"bf16", "f16", "f32", "auto"}))
      ->type_name("TYPE");
  command.add_flag("--round-scales", options.round_scales,
                   "Round the scales of int4 weights to 5 bits, with which codes stay codes");
  command
      .add_option("--activations", options.activations,
                  "What linear layers of a quantised model read: exact inputs, or inputs rounded "
                  "to int8, which makes prompts faster. auto rounds them in a GGUF file's blocks, "
                  "as llama.cpp does, and nowhere else")
      ->check(CLI::IsMember({"auto", "exact", "int8"}))
      ->type_name("TYPE");
}

std::string why_no_text(std::string_view text) {
  if (const auto bad = io::find_invalid_utf8(text); bad != text.npos) {
    return fmt::format("byte {} is no UTF-8: convert the text first", bad);
  }
  if (const auto zero = text.find('\0'); zero != text.npos) {
    return fmt::format("byte {} is zero, as in UTF-16: convert the text to UTF-8 first", zero);
  }
  return {};
}

std::string with_plain_lines(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!text.substr(i).starts_with("\r\n")) out.push_back(text[i]);
  }
  return out;
}

std::string read_text(const std::string& path, std::uint64_t max_bytes) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) {
    io::fail_file(path, "does not exist or is no file; expected a text file");
  }
  if (fs::file_size(path, error) <= max_bytes) {
    std::string text = io::read_file(path, max_bytes);
    if (text.empty()) io::fail_file(path, "is empty; expected text");
    return text;
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(max_bytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(max_bytes));
  if (!in) io::fail_file(path, "cannot be read");
  const auto line = text.rfind('\n');
  if (line != std::string::npos && line > 0) {
    text.resize(line + 1);
  } else {
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
  }
  return text;
}

std::vector<std::int32_t> encode_file(const std::string& path, const std::string& text,
                                      const io::Tokenizer& tokenizer) {
  if (const auto bad = io::find_invalid_utf8(text); bad != std::string_view::npos) {
    io::fail_file(path, "byte {} is no UTF-8: convert the text first", bad);
  }
  return tokenizer.encode(text);
}

std::vector<std::int64_t> read_tokens(const std::string& path, const io::Tokenizer& tokenizer,
                                      std::int64_t max_tokens) {
  // A token is seldom longer than 16 bytes of text.
  const auto wanted = static_cast<std::uint64_t>(max_tokens) * 16 + 65536;
  std::vector<std::int32_t> ids =
      encode_file(path, read_text(path, max_tokens > 0 ? wanted : 1ULL << 32), tokenizer);
  if (max_tokens > 0 && static_cast<std::int64_t>(ids.size()) > max_tokens) {
    ids.resize(static_cast<std::size_t>(max_tokens));
  }
  if (ids.empty()) io::fail_file(path, "gives no tokens; expected text");
  return {ids.begin(), ids.end()};
}

std::vector<std::int64_t> random_tokens(std::int64_t count, std::int64_t vocab,
                                        std::uint64_t seed) {
  std::mt19937_64 source(seed);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  for (auto& t : tokens) {
    t = static_cast<std::int64_t>(source() % static_cast<std::uint64_t>(vocab));
  }
  return tokens;
}

void save_model(const std::string& directory, io::ModelConfig config,
                const lm::NamedTensors& tensors, const io::Tokenizer& tokenizer,
                const io::SideFiles& sides) {
  io::AtomicDirectory target{directory};
  std::vector<io::TensorData> data;
  std::vector<at::Tensor> kept;  // contiguous copies of what is strided or on a GPU
  for (const auto& [name, tensor] : tensors) {
    kept.push_back(tensor.detach().cpu().contiguous());
    data.push_back(lm::tensor_data(name, kept.back()));
  }
  config.dtype = data.front().dtype == io::SafeDType::BF16 ? "bfloat16" : "float32";
  io::save_checkpoint(target.temporary(), data);
  tokenizer.save(target.temporary());
  sides.save(target.temporary());
  io::save_config(target.temporary(), config);
  target.commit();
}

}  // namespace twell::cli
