// twell synth: a random checkpoint of a chosen shape and sparsity, for measuring.
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <span>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "corpus/bpe_trainer.h"
#include "engine/ffn_statistics.h"
#include "files/file_error.h"
#include "files/run_directory.h"
#include "synth/synth_sparsity.h"

namespace twell::cli {
namespace {

struct SynthCommand : CommonOptions {
  std::string preset = "0.5b";
  double nnz = 29;
  std::string out;
  std::string tokenizer;
  std::string text;
  std::string activation = "relu";
  std::string profile = "flat";
  std::string dtype = "bf16";
  bool gated = true;
  std::uint64_t seed = 1;
  std::int64_t sample_tokens = 4096;
  std::optional<std::int64_t> layers, width, neurons, heads, kv_heads, vocab, context;
};

// The paper's models differ in their number of layers only.
const std::map<std::string, std::int64_t> kLayers = {
    {"0.5b", 8}, {"1b", 18}, {"1.5b", 28}, {"2b", 38}};

io::ModelConfig make_config(const SynthCommand& o) {
  io::ModelConfig config;
  config.num_hidden_layers = o.layers.value_or(kLayers.at(o.preset));
  config.hidden_size = o.width.value_or(2048);
  config.intermediate_size = o.neurons.value_or(5632);
  config.num_attention_heads = o.heads.value_or(std::max<std::int64_t>(1, config.hidden_size / 64));
  config.num_key_value_heads = o.kv_heads.value_or(config.num_attention_heads);
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.vocab_size = o.vocab.value_or(49152);
  config.max_position_embeddings = o.context.value_or(2048);
  config.block.norm.eps = 1e-5;
  config.block.positions.theta = 100000;
  config.tie_word_embeddings = true;
  config.hidden_act = *io::hidden_act_of(o.activation);
  config.gated = o.gated;
  config.dtype = o.dtype == "bf16" ? "bfloat16" : "float32";
  if (!(o.nnz > 0 && o.nnz < static_cast<double>(config.intermediate_size))) {
    io::fail_argument("--nnz", "{} is not between 0 and the neurons {}", o.nnz,
                      config.intermediate_size);
  }
  config.validate();
  return config;
}

// Bytes as tokens, and names without a meaning up to the size of the vocabulary.
io::Tokenizer byte_tokenizer(std::int64_t vocab) {
  constexpr std::int64_t kBytes = 257;  // and <|endoftext|>
  if (vocab < kBytes) {
    io::fail_argument("--vocab",
                      "{} is too small for the byte tokenizer, which needs {}; give a larger "
                      "one or --tokenizer",
                      vocab, kBytes);
  }
  const std::string_view text = "ab";
  lm::BpeOptions options;
  options.vocab_size = kBytes;
  nlohmann::json json =
      nlohmann::json::parse(lm::train_bpe(std::span<const std::string_view>(&text, 1), options));
  for (std::int64_t id = kBytes; id < vocab; ++id) {
    json["model"]["vocab"][fmt::format("<|unused {}|>", id)] = id;
  }
  return io::Tokenizer::from_json(json.dump(), "the byte tokenizer");
}

std::vector<std::int64_t> sample(const SynthCommand& o, const io::Tokenizer& tokenizer,
                                 std::int64_t vocab) {
  if (o.text.empty()) return random_tokens(o.sample_tokens, vocab, o.seed);
  auto tokens = read_tokens(o.text, tokenizer, o.sample_tokens);
  if (static_cast<std::int64_t>(tokens.size()) < o.sample_tokens) {
    io::fail_argument("--text " + o.text, "has {} tokens, --sample-tokens asks for {}",
                      tokens.size(), o.sample_tokens);
  }
  return tokens;
}

void run(SynthCommand& o) {
  check_output_directory("--out", o.out);
  const io::ModelConfig config = make_config(o);
  const io::Tokenizer tokenizer =
      o.tokenizer.empty() ? byte_tokenizer(config.vocab_size)
                          : io::Tokenizer::load(io::resolve_model_directory(o.tokenizer));
  if (tokenizer.vocab_size() > config.vocab_size) {
    io::fail_argument("--tokenizer " + o.tokenizer,
                      "has {} tokens, more than the model's {}; give --vocab",
                      tokenizer.vocab_size(), config.vocab_size);
  }
  const at::NoGradGuard no_grad;
  const auto tokens = sample(o, tokenizer, config.vocab_size);
  const std::int64_t length = std::min<std::int64_t>(512, config.max_position_embeddings);
  const std::int64_t rows = static_cast<std::int64_t>(tokens.size()) / 2 / length;

  Progress progress("making the model", config.num_hidden_layers + 3);
  progress.update(0, "random weights");
  const auto model =
      lm::make_model(config, o.dtype == "bf16" ? at::kBFloat16 : at::kFloat, o.seed, o.device);
  lm::share_direction(*model, o.seed);
  // Half of the sample calibrates, the other half measures.
  const at::Tensor ids = at::tensor(tokens, at::kLong).slice(0, 0, 2 * rows * length);
  const at::Tensor halves = ids.view({2, rows, length});
  const auto layers_nnz =
      o.profile == "paper"
          ? lm::nnz_of_layers(config.num_hidden_layers, o.nnz)
          : std::vector<double>(static_cast<std::size_t>(config.num_hidden_layers), o.nnz);
  if (const double most = *std::ranges::max_element(layers_nnz);
      most >= static_cast<double>(config.intermediate_size)) {
    io::fail_argument("--profile",
                      "asks for {:.0f} non-zeros of {} neurons in a layer; lower --nnz", most,
                      config.intermediate_size);
  }
  lm::calibrate_sparsity(
      *model, halves[0], layers_nnz, o.seed, [&](std::int64_t layer, double nnz) {
        progress.update(layer + 1, fmt::format("layer {}: {:.1f} non-zeros", layer, nnz));
      });
  progress.update(config.num_hidden_layers + 1, "measuring");
  lm::FfnStatistics statistics;
  for (std::int64_t r = 0; r < rows; ++r) {
    const at::Tensor row = halves[1][r].contiguous();
    const lm::Chunk chunk{0,
                          {row.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(length)}};
    model->hidden_states(std::span(&chunk, 1), nullptr, &statistics);
  }
  progress.update(config.num_hidden_layers + 2, "saving");
  save_model(o.out, config, model->parameters(), tokenizer);
  progress.finish();

  nlohmann::json layers = nlohmann::json::array();
  for (const auto& layer : statistics.layers()) {
    layers.push_back({{"nnz_mean", layer.nnz_mean()},
                      {"nnz_max", layer.nnz_max},
                      {"dead_fraction", layer.dead_fraction()}});
  }
  std::int64_t parameters = 0;
  for (const auto& [name, tensor] : model->parameters()) parameters += tensor.numel();
  o.say("{}: {:.2f} million parameters, {}, D = {}, H = {}\n", o.out,
        static_cast<double>(parameters) / 1e6, counted(config.num_hidden_layers, "layer"),
        config.hidden_size, config.intermediate_size);
  o.say("Non-zeros on {} that it was not calibrated on: {:.2f} of {} (asked for: {})\n",
        counted(rows * length, "token"), statistics.nnz_mean(), config.intermediate_size, o.nnz);
  o.write({{"nnz_target", o.nnz},
           {"nnz_measured", statistics.nnz_mean()},
           {"layers", layers},
           {"parameters", parameters},
           {"tokens_measured", rows * length},
           {"out", o.out}});
}

}  // namespace

void add_synth(CLI::App& app) {
  auto [c, o] = add_command<SynthCommand>(
      app, "synth", "Make a random checkpoint of the paper's shapes with a chosen sparsity",
      "twell synth --preset 0.5b --nnz 29 --out synth-0.5b", run);
  c.add_option("--preset", o->preset, "0.5b, 1b, 1.5b or 2b: 8, 18, 28 or 38 layers")
      ->check(CLI::IsMember({"0.5b", "1b", "1.5b", "2b"}));
  c.add_option("--nnz", o->nnz, "Neurons of a layer that fire for a token, mean");
  c.add_option("--out", o->out, "Directory to make")->required()->type_name("DIR");
  c.add_option("--tokenizer", o->tokenizer, "tokenizer.json to copy (default: bytes as tokens)")
      ->type_name("PATH");
  c.add_option("--text", o->text, "Text to calibrate on (default: random tokens)")
      ->type_name("FILE");
  c.add_option("--sample-tokens", o->sample_tokens,
               "Tokens: half to calibrate on, half to measure with")
      ->check(in_range(2048, 1 << 20));
  c.add_option("--activation", o->activation, "Activation, one that yields zeros")
      ->check(CLI::IsMember(activation_names()));
  c.add_option("--profile", o->profile,
               "Non-zeros by layer: flat, or as the paper describes them, with --nnz as their mean")
      ->check(CLI::IsMember({"flat", "paper"}));
  c.add_flag("--gated,!--no-gated", o->gated, "With a gate or without");
  c.add_option("--dtype", o->dtype, "bf16 or f32")->check(CLI::IsMember({"bf16", "f32"}));
  add_seed_option(c, o->seed, "Seed of the weights");
  add_device_option(c, *o);
  const auto shape = [&c](const char* name, std::optional<std::int64_t>& value, const char* text) {
    c.add_option(name, value, std::string(text) + " (default: of the preset)")
        ->check(kCounts)
        ->group("Shape");
  };
  shape("--layers", o->layers, "Layers");
  shape("--width", o->width, "Width D of a token");
  shape("--neurons", o->neurons, "Neurons H of a layer");
  shape("--heads", o->heads, "Attention heads");
  shape("--kv-heads", o->kv_heads, "Key and value heads");
  shape("--vocab", o->vocab, "Vocabulary");
  shape("--context", o->context, "Context");
}

}  // namespace twell::cli
