// Opening what commands read: models, tokenizers, texts; and saving a model.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/side_files.h"
#include "cli/command.h"
#include "decoder/model.h"
#include "gguf/stored_model.h"
#include "tokenizer/tokenizer.h"
#include "twell/status.h"

namespace twell::cli {

// What `use` of a model gives; an error that does not say of which model it speaks is given its
// name.
template <class Use>
auto named(const std::string& model, Use use) {
  try {
    return use();
  } catch (const Error& error) {
    throw Error(error.kind(), "--model " + model, error.what());
  }
}

// --model, --path and --dtype, for commands that run a model.
struct ModelOptions : CommonOptions {
  std::string model;          // a model directory, a run directory of `twell train`, or GGUF file
  std::string path = "auto";  // dense, sparse or auto
  std::string dtype = "auto";
  bool round_scales = false;
  std::string activations = "auto";  // or exact, int8
  bool allow_unused = false;
  std::int64_t layers = 0;  // the first so many; 0: all

  std::string directory() const;  // of the model itself; throws where it is none
  // The GGUF file that it is; null where it is none.
  std::shared_ptr<const io::StoredModel> gguf() const;
  std::string location() const { return gguf() ? model : directory(); }  // of either
  io::ModelConfig config() const;
  std::unique_ptr<lm::Model> open(lm::FfnPath path, bool prepack = false) const;
  std::unique_ptr<lm::Model> open() const { return open(lm::parse_ffn_path(path)); }
  io::Tokenizer tokenizer() const;
  nlohmann::json chat_files() const;  // for render_chat()

 private:
  mutable std::shared_ptr<const io::StoredModel> gguf_ = {};  // once it was asked for
};

// Throws where the model's activation yields no zeros, so that a benchmark has nothing to compare.
void require_zeros(const std::string& directory, const io::ModelConfig& config);

// Largest differences of logits, of the largest logit.
struct LogitErrors {
  double max_rel_err = 0;               // sparse against dense
  std::optional<double> dense, sparse;  // against the same weights in fp32, where `reference`
};
LogitErrors logit_errors(ModelOptions options, lm::Model& dense, lm::Model& sparse,
                         std::span<const std::int64_t> tokens, bool reference);

CLI::Option* add_model_option(CLI::App& command, ModelOptions& options);
void add_unused_option(CLI::App& command, bool& allow);          // --allow-unused
void add_path_option(CLI::App& command, ModelOptions& options);  // --path
void add_dtype_option(CLI::App& command, ModelOptions& options);

const char* dtype_name(at::ScalarType dtype);
// "bf16", "f16", "f32" or "auto" (none).
std::optional<at::ScalarType> parse_dtype(const std::string& name);

// Why a text is not fit for a tokenizer: bytes that are no UTF-8, or zeros, as UTF-16 has them;
// empty: it is.
std::string why_no_text(std::string_view text);
// A text as it would be read here had another system's editor not put a mark in front of it and a
// carriage return behind each line.
std::string with_plain_lines(std::string_view text);

// At most the first `max_bytes` of a text file, cut at a line and never within a character. Throws
// where it is empty or unreadable.
std::string read_text(const std::string& path, std::uint64_t max_bytes = 1ULL << 32);

// Token ids of the text that was read from `path`, which the message names where it is no UTF-8.
std::vector<std::int32_t> encode_file(const std::string& path, const std::string& text,
                                      const io::Tokenizer& tokenizer);
// The first `max_tokens` token ids of a text file (0: all).
std::vector<std::int64_t> read_tokens(const std::string& path, const io::Tokenizer& tokenizer,
                                      std::int64_t max_tokens);
std::vector<std::int64_t> random_tokens(std::int64_t count, std::int64_t vocab, std::uint64_t seed);

// Writes config.json, model.safetensors, the tokenizer's files and `sides`. `tensors`: all
// parameters of the model that `config` describes, as a trainable one or one of make_model has
// them; config.json gets their dtype. The directory appears whole or not at all.
void save_model(const std::string& directory, io::ModelConfig config,
                const lm::NamedTensors& tensors, const io::Tokenizer& tokenizer,
                const io::SideFiles& sides = {});

}  // namespace twell::cli
