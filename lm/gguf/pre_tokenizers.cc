#include "gguf/pre_tokenizers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace twell::io {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Step = NamedPreTokenizer::Step;
using StepKind = Step::Kind;

// Llama 3's words; of Qwen's only the run of digits differs.
std::string llama3_words(const std::string& digits) {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" + digits +
         R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

constexpr const char* kTekkenWords =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S))";

std::vector<NamedPreTokenizer> make_all() {
  const Step words{StepKind::words}, digits{StepKind::digits}, bytes{StepKind::bytes};
  const std::vector<Step> gpt2 = {words}, digits_apart = {digits, words};
  const std::vector<Step> llama3 = {{StepKind::split, llama3_words(R"(\p{N}{1,3})")}, bytes};
  const std::vector<Step> qwen2 = {{StepKind::split, llama3_words(R"(\p{N})")}, bytes};
  const std::vector<Step> tekken = {{StepKind::split, kTekkenWords}, bytes};
  // What llama.cpp does where it does not know better.
  const std::vector<Step> guessed = {{StepKind::split, R"([\p{P}\$\+<=>\^~\|]+)"},
                                     {StepKind::split, kGpt2Words},
                                     {StepKind::split, R"(\p{N}+)"},
                                     {StepKind::split, "[0-9][0-9][0-9]"},
                                     bytes};
  return {
      {.name = "gpt-2", .steps = gpt2},
      {.name = "smollm", .steps = digits_apart},
      {.name = "starcoder", .steps = digits_apart},
      {.name = "refact", .steps = digits_apart},
      {.name = "llama-bpe", .steps = llama3, .ignore_merges = true, .adds_begin = true},
      {.name = "llama3", .steps = llama3, .ignore_merges = true, .adds_begin = true},
      {.name = "llama-v3", .steps = llama3, .ignore_merges = true, .adds_begin = true},
      {.name = "smaug-bpe", .steps = llama3},
      {.name = "dbrx", .steps = llama3},
      {.name = "qwen2", .steps = qwen2, .nfc = true},
      {.name = "deepseek-r1-qwen", .steps = qwen2},
      {.name = "tekken", .steps = tekken, .ignore_merges = true, .adds_begin = true},
      {.name = "default", .steps = guessed},
  };
}

OrderedJson json_of(const Step& step) {
  switch (step.kind) {
    case StepKind::digits:
      return {{"type", "Digits"}, {"individual_digits", true}};
    case StepKind::split:
      return {{"type", "Split"},
              {"pattern", {{"Regex", step.pattern}}},
              {"behavior", "Isolated"},
              {"invert", false}};
    case StepKind::bytes:
    case StepKind::words:
      break;
  }
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", step.kind == StepKind::words}};
}

// False where it is none of the kinds.
bool add_steps(const nlohmann::json& json, std::vector<Step>& out) {
  if (!json.is_object()) return false;
  const std::string type = json.value("type", "");
  if (type == "Sequence") {
    const auto steps = json.value("pretokenizers", nlohmann::json::array());
    return std::ranges::all_of(steps, [&](const auto& step) { return add_steps(step, out); });
  }
  if (type == "Digits" && json.value("individual_digits", false)) {
    out.push_back({StepKind::digits});
    return true;
  }
  if (type == "ByteLevel" && !json.value("add_prefix_space", true)) {
    out.push_back({json.value("use_regex", true) ? StepKind::words : StepKind::bytes});
    return true;
  }
  if (type == "Split" && json.value("behavior", "") == "Isolated" && !json.value("invert", false)) {
    const auto pattern = json.value("pattern", nlohmann::json::object());
    if (!pattern.contains("Regex")) return false;
    out.push_back({StepKind::split, pattern["Regex"].get<std::string>()});
    return true;
  }
  return false;
}

}  // namespace

OrderedJson NamedPreTokenizer::json() const {
  if (steps.size() == 1) return json_of(steps[0]);
  OrderedJson list = OrderedJson::array();
  for (const Step& step : steps) list.push_back(json_of(step));
  return {{"type", "Sequence"}, {"pretokenizers", list}};
}

const std::vector<NamedPreTokenizer>& named_pre_tokenizers() {
  static const std::vector<NamedPreTokenizer> kAll = make_all();
  return kAll;
}

const NamedPreTokenizer* find_pre_tokenizer(std::string_view name) {
  const auto& all = named_pre_tokenizers();
  const auto found = std::ranges::find(all, name, &NamedPreTokenizer::name);
  return found == all.end() ? nullptr : &*found;
}

std::vector<Step> pre_tokenizer_steps(const nlohmann::json& json) {
  std::vector<Step> out;
  if (!add_steps(json, out)) return {};
  return out;
}

}  // namespace twell::io
