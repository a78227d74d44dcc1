// twell bench model: a whole model, PyTorch dense against sparse feed-forward layers.
#include <c10/util/Exception.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <string_view>

#include "choice/device.h"
#include "cli/command.h"
#include "cli/json_out.h"
#include "cli/model_files.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "engine/ffn_statistics.h"
#include "measure/machine.h"
#include "measure/model_compare.h"

namespace twell::cli {
namespace {

struct BenchModelCommand : ModelOptions {
  std::string text;
  measure::CompareOptions compare;
  bool reference = false;
};

// Time and peak memory of loading, as a user of the sparse path would see them.
struct Load {
  double us = 0, peak_bytes = 0;
};

void print_pair(Table& table, const char* name, const measure::SpeedPair& pair) {
  table.row({name, fmt::format("{:.1f}", pair.dense_tokens_per_s()),
             fmt::format("{:.1f}", pair.sparse_tokens_per_s()), format_ratio(pair.speedup),
             pair.dense_impl});
}

void print_pieces(const BenchModelCommand& o, const measure::Comparison& result) {
  if (!result.decode.sparse_pieces) return;
  Table table(
      {"share of time", "prefill dense", "prefill sparse", "decode dense", "decode sparse"});
  const std::array<const measure::PieceShares*, 4> columns = {
      &*result.prefill.dense_pieces, &*result.prefill.sparse_pieces, &*result.decode.dense_pieces,
      &*result.decode.sparse_pieces};
  for (std::size_t p = 0; p <= lm::kPieceNames.size(); ++p) {
    const bool rest = p == lm::kPieceNames.size();
    std::vector<std::string> row = {rest ? "rest" : lm::kPieceNames[p]};
    std::replace(row[0].begin(), row[0].end(), '_', ' ');
    for (const measure::PieceShares* column : columns) {
      row.push_back(fmt::format("{:.1f} %", 100 * (rest ? column->rest : column->share[p])));
    }
    table.row(row);
  }
  o.say("{}\n", table.to_string());
}

nlohmann::json profile_json(const measure::SpeedPair& pair) {
  if (!pair.sparse_pieces) return nullptr;
  return {{"dense", pair.dense_pieces->to_json()}, {"sparse", pair.sparse_pieces->to_json()}};
}

// Of the GPU; null on the CPU.
nlohmann::json device_peaks_json(const BenchModelCommand& o, const measure::Comparison& result) {
  if (o.device.is_cpu()) return nullptr;
  const auto pair = [](const measure::PeakBytes& peak) {
    return nlohmann::json{{"dense", peak.dense}, {"sparse", peak.sparse}};
  };
  return {{"prefill", pair(result.prefill.peak)}, {"decode", pair(result.decode.peak)}};
}

nlohmann::json energy_json(const measure::Comparison& result) {
  if (result.decode.energy_source == nullptr) return nullptr;
  const auto pair = [](const measure::SpeedPair& p) {
    return nlohmann::json{{"dense", measure::optional_json(p.dense_mj)},
                          {"sparse", measure::optional_json(p.sparse_mj)}};
  };
  return {{"prefill", pair(result.prefill)},
          {"decode", pair(result.decode)},
          {"source", result.decode.energy_source}};
}

// Energy and memory, where either is known.
void print_costs(const BenchModelCommand& o, const measure::Comparison& result) {
  if (result.decode.energy_source == nullptr && o.device.is_cpu()) return;
  Table table({"", "dense mJ/token", "sparse mJ/token", "dense GPU peak", "sparse GPU peak"});
  const auto energy = [](const std::optional<double>& mj) {
    return mj ? fmt::format("{:.1f}", *mj) : std::string("-");
  };
  const auto memory = [&o](std::int64_t bytes) {
    return o.device.is_cpu() ? std::string("-") : format_bytes(static_cast<double>(bytes));
  };
  const auto row = [&](const char* name, const measure::SpeedPair& pair) {
    table.row({name, energy(pair.dense_mj), energy(pair.sparse_mj), memory(pair.peak.dense),
               memory(pair.peak.sparse)});
  };
  row("prefill", result.prefill);
  row("decode", result.decode);
  o.say("{}\n", table.to_string());
}

std::string neurons_of(const io::ModelConfig& config) {
  const io::ExpertForm& experts = config.block.experts;
  if (experts.count == 0) return fmt::format("{}", config.intermediate_size);
  return fmt::format("{} of each expert ({} of {} a token)", config.intermediate_size,
                     experts.active, experts.count);
}

// Why logits of the two paths may be further apart than rounding is; empty where they may not.
std::string_view jumps_of(const io::ModelConfig& config) {
  if (config.block.experts.count > 0) {
    return "where scores are as close as rounding, another expert may be chosen";
  }
  if (config.hidden_act == io::HiddenAct::fat_relu) {
    return "where a gate is as close to the threshold as rounding, it may become 0";
  }
  return {};
}

void run(BenchModelCommand& o) {
  const c10::InferenceMode no_grad;
  const std::int64_t needed = o.compare.prompt_tokens + o.compare.decode_tokens;

  Load load;
  const double before = measure::peak_resident_bytes();
  const auto begin = std::chrono::steady_clock::now();
  const auto sparse = o.open(lm::FfnPath::sparse);
  load.us =
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  load.peak_bytes = measure::peak_resident_bytes() - before;
  measure::keep_freed_memory();

  const auto tokens = o.text.empty() ? random_tokens(needed, sparse->config().vocab_size, 1)
                                     : read_tokens(o.text, o.tokenizer(), needed);
  const auto plain = o.open(lm::FfnPath::dense);
  std::vector<measure::DenseSide> dense = {{"plain weights", plain.get()}};
  std::unique_ptr<lm::Model> prepacked;
  if (o.device.is_cpu()) {
    try {
      prepacked = o.open(lm::FfnPath::dense, true);
      dense.push_back({"oneDNN prepacked", prepacked.get()});
    } catch (const c10::Error&) {  // not for this dtype with this processor
    }
  }
  o.say("{}: {} layers, D = {}, H = {}, {}, {}\n", o.model, sparse->config().num_hidden_layers,
        sparse->config().hidden_size, neurons_of(sparse->config()), dtype_name(sparse->dtype()),
        o.device.is_cpu() ? fmt::format("{} threads", o.threads)
                          : lm::runtime_of(o.device).describe());
  if (o.text.empty()) o.say("No --text given: random tokens\n");

  lm::ScoreOptions score;
  const double nnz = lm::measure_ffn(*sparse, tokens, 0, score).nnz_mean();
  // Two phases, each with all dense sides and the sparse one.
  Progress progress("measuring",
                    2 * static_cast<std::int64_t>(dense.size() + 1) * o.compare.measure.repeats);
  std::int64_t done = 0;
  const measure::Comparison result =
      measure::compare_speed(dense, *sparse, tokens, o.compare,
                             [&](const std::string& what) { progress.update(++done, what); });
  progress.finish();
  const auto prompt = std::span(tokens).first(static_cast<std::size_t>(o.compare.prompt_tokens));
  const LogitErrors errors = logit_errors(o, *plain, *sparse, prompt, o.reference);
  const std::string_view jumps = jumps_of(sparse->config());
  std::optional<double> bound;
  if (jumps.empty()) {
    bound = measure::logits_error_bound(sparse->layers(), sparse->dtype());
  }

  Table table({"", "dense tokens/s", "sparse tokens/s", "speedup", "dense form"});
  print_pair(table, "prefill", result.prefill);
  print_pair(table, "decode", result.decode);
  o.say("\n{}\n", table.to_string());
  print_costs(o, result);
  print_pieces(o, result);
  o.say("Mean non-zeros {:.1f} of {}; logits differ by {:.1e} of the largest ({})\n", nnz,
        sparse->config().neurons_of_token(), errors.max_rel_err,
        bound ? fmt::format("bound {:.1e}", *bound) : fmt::format("no bound: {}", jumps));
  if (errors.dense) {
    o.say("Against fp32: dense {:.1e}, sparse {:.1e}\n", *errors.dense, *errors.sparse);
  }
  o.say("Loading {} for the sparse path took {} and {} of memory\n",
        format_bytes(static_cast<double>(sparse->weight_bytes())), format_us(load.us),
        format_bytes(load.peak_bytes));
  o.write({{"prefill", result.prefill.to_json()},
           {"decode", result.decode.to_json()},
           {"train", nullptr},
           {"profile",
            {{"prefill", profile_json(result.prefill)}, {"decode", profile_json(result.decode)}}},
           {"nnz_mean", nnz},
           {"max_rel_err", errors.max_rel_err},
           {"max_rel_err_bound", measure::optional_json(bound)},
           {"dense_max_rel_err_fp32", measure::optional_json(errors.dense)},
           {"sparse_max_rel_err_fp32", measure::optional_json(errors.sparse)},
           {"peak_bytes", measure::peak_resident_bytes()},
           {"device", o.device_name},
           {"device_peak_bytes", device_peaks_json(o, result)},
           {"load_us", load.us},
           {"load_peak_bytes", load.peak_bytes},
           {"weight_bytes", {{"dense", plain->weight_bytes()}, {"sparse", sparse->weight_bytes()}}},
           {"energy_mj_per_token", energy_json(result)},
           {"text", o.text.empty() ? nlohmann::json(nullptr) : nlohmann::json(o.text)}});
}

}  // namespace

void add_bench_model(CLI::App& bench) {
  auto [c, o] = add_command<BenchModelCommand>(
      bench, "model",
      "A whole model: prefill and decode, PyTorch dense (its faster variant) against sparse",
      "twell bench model --model synth-0.5b --text book.txt --prompt-tokens 512", run);
  add_model_option(c, *o);
  add_dtype_option(c, *o);
  add_device_option(c, *o);
  c.add_option("--text", o->text, "Real text to run (default: random tokens)")->type_name("FILE");
  c.add_option("--prompt-tokens", o->compare.prompt_tokens, "Tokens of a prefill")->check(kCounts);
  c.add_option("--decode-tokens", o->compare.decode_tokens, "Tokens decoded after it")
      ->check(kCounts);
  c.add_option("--repeats", o->compare.measure.repeats, "Timed runs of each side")
      ->check(in_range(1, 1000));
  c.add_option("--seconds", o->compare.measure.min_seconds, "Shortest timed run, in seconds")
      ->check(in_range(0.001, 600.0));
  c.add_flag("--reference", o->reference,
             "Also compare both sides with the same weights in fp32 (twice the memory)");
}

}  // namespace twell::cli
