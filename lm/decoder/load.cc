#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "decoder/decoder.h"
#include "decoder/gguf_model.h"
#include "decoder/model_directory.h"
#include "decoder/random.h"
#include "device/device.h"
#include "files/file_error.h"
#include "files/note.h"
#include "twell/status.h"

namespace twell::lm {
namespace {

bool sparse_possible(const Decoder& model) {
  const at::ScalarType other = model.device().is_cpu() ? at::kFloat : at::kHalf;
  const bool form_taken =
      model.device().is_cpu() || is_plain(model.ffn_parameters(0), model.activation());
  return io::yields_zeros(model.config().hidden_act) && form_taken &&
         (model.dtype() == other || model.dtype() == at::kBFloat16);
}

void require_grad(const Model& model) {
  for (const auto& [name, tensor] : model.parameters()) tensor.requires_grad_(true);
}

// Runs seeded tokens, so that each sparse layer chooses the form of its gate, knows a density, and,
// on a GPU, has its neurons ordered and its screen made, before its first call: what a model
// computes on a fixed path does not depend on what it was asked first. Ids are drawn by Zipf's law,
// by which vocabularies are ordered. A CPU's layers need 64 tokens; a GPU's want to tell neurons
// that 1 % of the tokens fire from others, and look at counts in the call after the one that was
// counted: those of neurons, and then those of a screen's candidates.
void settle(Decoder& model) {
  const c10::InferenceMode inference;
  Random random(64);
  const auto vocabulary = static_cast<double>(model.config().vocab_size);
  const std::int64_t length = std::min<std::int64_t>(64, model.config().max_position_embeddings);
  const auto run = [&](std::int64_t wanted) {
    std::vector<std::vector<std::int64_t>> sequences;
    std::vector<Chunk> chunks;
    for (std::int64_t begin = 0; begin < wanted; begin += length) {
      auto& tokens = sequences.emplace_back();
      for (std::int64_t i = 0; i < length; ++i) {
        tokens.push_back(static_cast<std::int64_t>(std::pow(vocabulary, random.uniform())) - 1);
      }
    }
    for (const auto& tokens : sequences) chunks.push_back({0, tokens});
    model.hidden_states(chunks, nullptr, nullptr);
    runtime_of(model.device()).synchronize();
  };
  if (!model.device().is_cpu()) {
    run(kTokensToOrder);
    run(length);
  }
  // An expert is to see as many tokens as a layer without others.
  const io::ExpertSpec& experts = model.config().block.experts;
  run(experts.count == 0 ? length : length * experts.count / experts.active);
}

// Where nothing is faster by rounded inputs, they only lose.
void require_rounding(const std::string& file, const io::ModelConfig& config, bool on_cpu) {
  const char* const missing = !on_cpu ? "are for inference on a CPU; use --device cpu"
                              : !config.quantization ? "are for a model with quantised weights; "
                                                       "twell quantize makes one"
                                                     : nullptr;
  if (missing == nullptr) return;
  throw Error(ErrorKind::unsupported, file, std::string("activations in int8 ") + missing);
}

[[noreturn]] void require_blocks(const std::string& file) {
  throw Error(
      ErrorKind::unsupported, file,
      "activations in int8 are for a GGUF file whose matrices stay in their blocks: those of "
      "a quantised type, on a CPU, without --dtype");
}

}  // namespace

std::unique_ptr<Model> load_model(const std::string& model_path, const LoadOptions& options) {
  const std::filesystem::path path(model_path);
  const auto stored = io::is_gguf(path)
                          ? std::make_shared<const io::StoredModel>(path, options.allow_unused)
                          : nullptr;
  const std::string said_in = (stored ? path : path / "config.json").string();
  io::ModelConfig config = stored ? stored->config() : io::load_config(path, options.architectures);
  const bool whole = options.layers <= 0 || options.layers >= config.num_hidden_layers;
  if (!whole) config.num_hidden_layers = options.layers;
  if (options.path == FfnPath::sparse && !options.trainable &&
      !io::yields_zeros(config.hidden_act)) {
    // Before gigabytes are mapped and converted.
    throw Error(ErrorKind::unsupported, said_in,
                fmt::format("activation '{}' yields no zeros, so there is no sparse path; use "
                            "--path dense, or a model trained with one of {}",
                            io::name_of(config.hidden_act), io::sparse_names()));
  }
  const bool on_cpu = options.device.is_cpu();
  const bool infers_on_cpu = on_cpu && !options.trainable;
  const bool rounds = options.round_inputs.value_or(false);
  if (rounds && !stored) require_rounding(said_in, config, infers_on_cpu);
  if (rounds && stored && (options.dtype || !infers_on_cpu)) require_blocks(said_in);
  if (const std::int64_t experts = config.block.experts.count; experts > 0 && !on_cpu) {
    throw Error(ErrorKind::unsupported, said_in,
                fmt::format("layers of {} experts run on a CPU only; use --device cpu", experts));
  }
  const bool sparse = options.path != FfnPath::dense && io::yields_zeros(config.hidden_act);
  CheckpointSourceOptions from = {.dtype = options.dtype,
                                  .own_copies = options.trainable && on_cpu,
                                  .check_finite = options.check_finite,
                                  .keep_f16 = !on_cpu,
                                  .keep_codes = infers_on_cpu && sparse,
                                  .round_scales = options.round_scales};
  std::unique_ptr<OpenedModel> opened;
  if (stored) {
    from.keep_codes = infers_on_cpu && !options.dtype;
    opened = std::make_unique<GgufModel>(stored, std::move(config), from);
  } else {
    opened = std::make_unique<ModelDirectory>(path, std::move(config), from);
  }
  ParameterSource& source = opened->source();
  auto model = std::make_unique<Decoder>(opened->config(), source, options.device);
  opened->note_dequantized();
  if (rounds && !model->has_ggml_weights()) {
    if (stored) require_blocks(said_in);
    model->round_inputs();
  }
  const auto check_used = [&] {
    if (whole && !options.allow_unused) opened->check_all_used();
  };
  if (options.trainable) {
    model->use_dense_ffn(false, source);
    check_used();
    require_grad(*model);
  } else if (model->has_ggml_weights()) {
    const bool exact = !options.round_inputs.value_or(true);
    model->use_ggml_ffn(options.path, exact ? GgmlInputs::as_they_are : GgmlInputs::rounded,
                        source);
    if (options.prepare && options.path == FfnPath::automatic && sparse) settle(*model);
  } else if (options.path == FfnPath::sparse ||
             (options.path == FfnPath::automatic && sparse_possible(*model))) {
    std::vector<LayerFindings> findings;
    if (options.prepare && whole) findings = opened->findings(*model);
    model->use_sparse_ffn(options.path, source, findings);
    check_used();
    if (options.prepare) settle(*model);
  } else {
    model->use_dense_ffn(options.prepack_dense && on_cpu, source);
    check_used();
  }
  return model;
}

std::unique_ptr<Model> make_model(const io::ModelConfig& config, at::ScalarType dtype,
                                  std::uint64_t seed, at::Device device) {
  config.validate();
  // 0.02: the initializer_range of Llama and Qwen2.
  const auto source = make_random_source(dtype, seed, config.num_hidden_layers, 0.02);
  auto model = std::make_unique<Decoder>(config, *source, device);
  model->use_dense_ffn(false, *source);
  require_grad(*model);
  return model;
}

}  // namespace twell::lm
