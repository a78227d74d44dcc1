// twell bench model: a whole model, PyTorch dense against sparse feed-forward layers.
#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string_view>

#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/speed_table.h"
#include "cli/table.h"
#include "device/device.h"
#include "engine/ffn_statistics.h"
#include "files/file_error.h"
#include "files/interrupt.h"
#include "measure/fit.h"
#include "measure/joined_layers.h"
#include "measure/layer_compare.h"
#include "measure/machine.h"
#include "measure/model_compare.h"

namespace twell::cli {
namespace {

struct BenchModelCommand : ModelOptions {
  std::string text, only;
  lm::CompareOptions compare;
  bool reference = false, by_layer = false, eager = true;
};

// Time and peak memory of loading, as a user of the sparse path would see them.
struct Load {
  double us = 0, peak_bytes = 0;
};

// All that is compared, and what it is made of.
struct Contenders {
  std::unique_ptr<lm::Model> sparse, plain, prepacked;
  std::optional<lm::JoinedLayers> joined;
  std::optional<lm::EagerModel> eager;
  lm::Sides sides;
};

void print_pieces(const BenchModelCommand& o, const lm::Comparison& result) {
  Table table(
      {"share of time", "prefill dense", "prefill sparse", "decode dense", "decode sparse"});
  std::array<const lm::PieceShares*, 4> columns{};
  const auto take = [&](std::size_t first, const std::optional<lm::Speed>& speed) {
    if (!speed || !speed->sparse_pieces || !speed->dense_pieces) return;
    columns[first] = &*speed->dense_pieces;
    columns[first + 1] = &*speed->sparse_pieces;
  };
  take(0, result.prefill);
  take(2, result.decode);
  if (std::ranges::none_of(columns, [](const auto* column) { return column != nullptr; })) return;
  for (std::size_t p = 0; p <= lm::kPieceNames.size(); ++p) {
    const bool rest = p == lm::kPieceNames.size();
    std::vector<std::string> row = {rest ? "rest" : lm::kPieceNames[p]};
    std::replace(row[0].begin(), row[0].end(), '_', ' ');
    for (const lm::PieceShares* column : columns) {
      row.push_back(column == nullptr
                        ? "-"
                        : fmt::format("{:.1f} %", 100 * (rest ? column->rest : column->share[p])));
    }
    table.row(row);
  }
  o.say("{}\n", table.to_string(o.colour()));
}

nlohmann::json profile_json(const std::optional<lm::Speed>& speed) {
  if (!speed || !speed->sparse_pieces) return nullptr;
  return {{"dense", speed->dense_pieces->to_json()}, {"sparse", speed->sparse_pieces->to_json()}};
}

nlohmann::json speed_json(const std::optional<lm::Speed>& speed) {
  return speed ? speed->to_json() : nlohmann::json();
}

std::string neurons_of(const io::ModelConfig& config) {
  const io::ExpertSpec& experts = config.block.experts;
  if (experts.count == 0) return fmt::format("{}", config.intermediate_size);
  return fmt::format("{} of each expert ({} of {} a token)", config.intermediate_size,
                     experts.active, experts.count);
}

// Why logits of the two paths may be further apart than rounding is; empty where they may not.
std::string_view jumps_of(const lm::Model& model) {
  const io::ModelConfig& config = model.config();
  if (model.rounds_inputs()) {
    return "where an input of a product is as close to the next integer as rounding, it may become "
           "that";
  }
  if (config.block.experts.count > 0) {
    return "where scores are as close as rounding, another expert may be chosen";
  }
  if (config.hidden_act == io::HiddenAct::fat_relu) {
    return "where a gate is as close to the threshold as rounding, it may become 0";
  }
  return {};
}

// The layers of the model to run: those of --layers, or as many as fit beside one another.
std::int64_t choose_layers(const BenchModelCommand& o, const io::ModelConfig& config) {
  if (o.layers > 0) return std::min(o.layers, config.num_hidden_layers);
  // Sparse, plain and, on a CPU, prepacked; each has a cache, and so have joined and eager forms.
  const double copies = o.device.is_cpu() ? 3 : 2;
  double element = o.dtype == "f32" || config.dtype == "float32" ? 4 : 2;
  if (const auto gguf = o.gguf(); gguf && o.dtype == "auto") element = gguf->bytes_a_number();
  const auto need = lm::inference_need(config, o.compare, copies, 4, element);
  lm::DeviceRuntime& runtime = lm::runtime_of(o.device);
  return lm::layers_that_fit(need, config.num_hidden_layers, runtime.free_bytes(),
                             "--device " + o.device_name);
}

Contenders open_all(const BenchModelCommand& o, Load& load) {
  Contenders out;
  const double before = lm::peak_resident_bytes();
  const auto begin = std::chrono::steady_clock::now();
  out.sparse = o.open(lm::FfnPath::sparse);
  load.us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  load.peak_bytes = lm::peak_resident_bytes() - before;
  lm::keep_freed_memory();
  out.plain = o.open(lm::FfnPath::dense);
  out.sides.sparse = out.sparse.get();
  const io::ModelConfig& config = out.plain->config();
  if (out.plain->has_ggml_weights()) {  // which PyTorch does not multiply
    out.sides.dense.push_back({"dense, in the same blocks", out.plain.get()});
    return out;
  }
  out.sides.dense.push_back({"dense, plain weights", out.plain.get()});
  if (o.device.is_cpu()) {
    try {
      out.prepacked = o.open(lm::FfnPath::dense, true);
      out.sides.dense.push_back({"dense, oneDNN prepacked", out.prepacked.get()});
    } catch (const c10::Error&) {  // not for this dtype with this processor
    }
  } else if (config.gated && lm::is_plain(out.plain->ffn_parameters(0), out.plain->activation())) {
    lm::JoinedLayers* joined = &out.joined.emplace(*out.plain);
    out.sides.dense.front().enter = [joined] { joined->join(false); };
    out.sides.dense.push_back(
        {"dense, gate and up joined", out.plain.get(), [joined] { joined->join(true); }});
  }
  if (o.eager && lm::EagerModel::serves(config)) {
    out.sides.eager = &out.eager.emplace(config, out.plain->parameters());
  } else if (o.eager) {
    o.say("PyTorch eager is left out: it is written here for models built like Llama alone\n");
  }
  return out;
}

// Mean non-zeros of each layer on the prompts that are timed.
std::vector<double> nnz_by_layer(lm::Model& sparse, std::span<const std::int64_t> tokens,
                                 const lm::CompareOptions& options) {
  lm::FfnStatistics statistics;
  for (std::int64_t s = 0; s < options.sequences; ++s) {
    io::check_interrupt();
    const lm::Chunk chunk{0, tokens.subspan(static_cast<std::size_t>(s * options.length()),
                                            static_cast<std::size_t>(options.prompt_tokens))};
    sparse.hidden_states(std::span(&chunk, 1), nullptr, &statistics);
  }
  std::vector<double> out;
  for (const lm::FfnTotals& layer : statistics.layers()) out.push_back(layer.nnz_mean());
  return out;
}

std::vector<lm::LayerSpeed> by_layer(const BenchModelCommand& o, const Contenders& all,
                                     std::span<const std::int64_t> tokens,
                                     std::span<const double> nnz) {
  Progress progress("layer by layer", static_cast<std::int64_t>(nnz.size()));
  std::int64_t done = 0;
  auto speeds =
      lm::compare_layers(all.sides, tokens, nnz, o.compare, [&] { progress.update(++done); });
  progress.finish();
  o.say("{}", layer_table(speeds, o.colour()));
  return speeds;
}

void run(BenchModelCommand& o) {
  const c10::InferenceMode no_grad;
  const io::LastWords last_words([&o] { o.tell_so_far(); });
  o.compare.prefill = o.only != "decode";
  o.compare.decode = o.only != "prefill";
  const io::ModelConfig config = o.config();
  require_zeros(o.model, config);
  if (o.by_layer && config.block.experts.count > 0) {
    io::fail_argument("--by-layer", "is for models whose layers have no experts");
  }
  o.layers = choose_layers(o, config);
  const auto tokens = o.text.empty() ? random_tokens(o.compare.tokens(), config.vocab_size, 1)
                                     : read_tokens(o.text, o.tokenizer(), o.compare.tokens());
  lm::require_tokens(o.compare, std::ssize(tokens), config.max_position_embeddings);
  Load load;
  Contenders all = open_all(o, load);
  lm::Model& sparse = *all.sparse;
  o.say_lines(
      "{}: {}{}, D = {}, H = {}, {}, {}", o.model, counted(sparse.layers(), "layer"),
      sparse.layers() == config.num_hidden_layers
          ? std::string()
          : fmt::format(" of {} (--layers, or memory)", config.num_hidden_layers),
      config.hidden_size, neurons_of(config), dtype_name(sparse.dtype()),
      o.device.is_cpu() ? counted(o.threads, "thread") : lm::runtime_of(o.device).describe());
  if (o.text.empty()) o.say("No --text given: random tokens\n");

  nlohmann::json out = {
      {"batch", o.compare.sequences},
      {"activations", o.activations},
      {"prompt_tokens", o.compare.prompt_tokens},
      {"decode_tokens", o.compare.decode_tokens},
      {"layers_of_model", config.num_hidden_layers},
      {"layers_run", sparse.layers()},
      {"dtype", dtype_name(sparse.dtype())},
      {"repeats", o.compare.measure.repeats},
      {"train", nullptr},
      {"device", o.device_name},
      {"load_us", load.us},
      {"load_peak_bytes", load.peak_bytes},
      {"weight_bytes", {{"dense", all.plain->weight_bytes()}, {"sparse", sparse.weight_bytes()}}},
      {"text", o.text.empty() ? nlohmann::json(nullptr) : nlohmann::json(o.text)}};

  // Each phase has all sides. The file is written after every round.
  const std::size_t sides = all.sides.dense.size() + (all.sides.eager != nullptr ? 2 : 1);
  const int phases = static_cast<int>(o.compare.prefill) + static_cast<int>(o.compare.decode);
  Progress progress("measuring",
                    phases * static_cast<std::int64_t>(sides) * o.compare.measure.repeats);
  std::int64_t done = 0;
  const auto publish = [&](const char* name, const std::optional<lm::Speed>& speed) {
    const bool printed = out.contains(name) && out[name].is_object() && out[name]["complete"];
    out[name] = speed_json(speed);
    out["profile"][name] = profile_json(speed);
    if (!speed || !speed->complete || printed) return;
    progress.clear();
    o.say("\n{}", speed_table(name, o.compare, *speed, o.colour()));
  };
  const lm::Comparison result = lm::compare_speed(
      all.sides, tokens, o.compare, [&](const std::string& what) { progress.update(++done, what); },
      [&](const lm::Comparison& so_far) {
        publish("prefill", so_far.prefill);
        publish("decode", so_far.decode);
        o.write_so_far(out);
      });
  progress.finish();
  o.say("\n");
  print_pieces(o, result);
  // After the runs: a layer that counts first would not meet its first call cold.
  const std::vector<double> nnz = nnz_by_layer(sparse, tokens, o.compare);
  double nnz_mean = 0;
  for (const double of_layer : nnz) nnz_mean += of_layer / static_cast<double>(nnz.size());
  out["nnz_mean"] = nnz_mean;
  o.write_so_far(out);

  const auto prompt = std::span(tokens).first(static_cast<std::size_t>(o.compare.prompt_tokens));
  const LogitErrors errors = logit_errors(o, *all.plain, sparse, prompt, o.reference);
  const std::string_view jumps = jumps_of(sparse);
  std::optional<double> bound;
  if (jumps.empty()) bound = lm::logits_error_bound(sparse.layers(), sparse.dtype());
  o.say_lines("Mean non-zeros {:.1f} of {}; logits differ by {:.1e} of the largest{}", nnz_mean,
              sparse.config().neurons_of_token(), errors.max_rel_err,
              bound ? fmt::format(" (bound {:.1e})", *bound) : std::string());
  if (!bound) o.say("No bound of that: {}\n", jumps);
  if (errors.dense) {
    o.say("Against fp32: dense {:.1e}, sparse {:.1e}\n", *errors.dense, *errors.sparse);
  }
  o.say("Loading {} for the sparse path took {} and {} of memory\n",
        format_bytes(static_cast<double>(sparse.weight_bytes())), format_us(load.us),
        format_bytes(load.peak_bytes));
  o.write_so_far(out);
  out["by_layer"] = o.by_layer ? lm::to_json(by_layer(o, all, tokens, nnz)) : nlohmann::json();
  out.update({{"max_rel_err", errors.max_rel_err},
              {"max_rel_err_bound", lm::optional_json(bound)},
              {"dense_max_rel_err_fp32", lm::optional_json(errors.dense)},
              {"sparse_max_rel_err_fp32", lm::optional_json(errors.sparse)},
              {"peak_bytes", lm::peak_resident_bytes()},
              {"complete", true}});
  o.write(out);
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  auto [c, o] = add_command<BenchModelCommand>(
      bench, "model",
      "A whole model: prefill and decode, sparse against PyTorch dense at its best and in eager "
      "mode",
      "twell bench model --model synth-0.5b --text book.txt --batch 4 --prompt-tokens 512", run);
  add_model_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
  c.add_option("--text", o->text, "Real text to run (default: random tokens)")->type_name("FILE");
  c.add_option("--batch", o->compare.sequences, "Sequences at a time")->check(kCounts);
  c.add_option("--prompt-tokens", o->compare.prompt_tokens, "Tokens of a prompt")->check(kCounts);
  c.add_option("--decode-tokens", o->compare.decode_tokens, "Tokens decoded after it")
      ->check(kCounts);
  c.add_option("--repeats", o->compare.measure.repeats, "Timed runs of each side")
      ->check(in_range(1, 1000));
  c.add_option("--seconds", o->compare.measure.min_seconds, "Shortest timed run, in seconds")
      ->check(in_range(0.001, 600.0));
  c.add_option("--only", o->only, "Of the two, prefill or decode alone")
      ->check(CLI::IsMember({"prefill", "decode"}));
  c.add_flag("--by-layer", o->by_layer,
             "Also each feed-forward layer alone, and how that goes with its activity");
  c.add_option("--layers", o->layers, "Run the first so many layers (default: as many as fit)")
      ->check(kCounts);
  c.add_flag("--eager,!--no-eager", o->eager,
             "Beside PyTorch eager as well, as transformers runs it");
  c.add_flag("--reference", o->reference,
             "Also compare both sides with the same weights in fp32 (twice the memory)");
}

}  // namespace twell::cli
