#include "train/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <system_error>

#include "files/file_error.h"
#include "tokenizer/unicode.h"
#include "twell/device.h"

namespace twell::lm {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

// One place that knows all fields: Visitor(name, field, lowest, highest).
template <class Self, class Visitor>
void visit_numbers(Self& r, Visitor&& visit) {
  visit("bpe_vocab", r.bpe_vocab, 257, std::int64_t{1} << 20);
  visit("validation_fraction", r.validation_fraction, 0.0, 0.5);
  visit("steps", r.steps, 1, kMaxCount);
  visit("context", r.context, 1, std::int64_t{1} << 24);
  visit("micro_batch", r.micro_batch, 1, std::int64_t{1} << 24);
  visit("accumulation", r.accumulation, 1, std::int64_t{1} << 24);
  visit("peak_lr", r.peak_lr, 0.0, 1e3);
  visit("min_lr_ratio", r.min_lr_ratio, 0.0, 1.0);
  visit("warmup_steps", r.warmup_steps, 0, kMaxCount);
  visit("beta1", r.beta1, 0.0, std::nextafter(1.0, 0.0));
  visit("beta2", r.beta2, 0.0, std::nextafter(1.0, 0.0));
  visit("eps", r.eps, 0.0, 1.0);
  visit("weight_decay", r.weight_decay, 0.0, 1e3);
  visit("clip", r.clip, 0.0, 1e9);
  visit("l1", r.l1, 0.0, 1e6);
  visit("l1_start", r.l1_start, 0, kMaxCount);
  visit("l1_warmup", r.l1_warmup, 0, kMaxCount);
  visit("reinit_every", r.reinit_every, 0, kMaxCount);
  visit("reinit_std", r.reinit_std, 0.0, 1e3);
  visit("dead_window", r.dead_window, 1, kMaxCount);
  visit("time_budget_s", r.time_budget_s, 0.0, 1e9);
  visit("shortened_to", r.shortened_to, 0, kMaxCount);
  visit("log_every", r.log_every, 1, kMaxCount);
  visit("eval_every", r.eval_every, 0, kMaxCount);
  visit("eval_windows", r.eval_windows, 1, kMaxCount);
  visit("save_every", r.save_every, 0, kMaxCount);
  visit("keep_checkpoints", r.keep_checkpoints, 1, kMaxCount);
}

// Takes a number from the front of `text`, and says whether there was one.
template <class T>
bool take_number(std::string_view& text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return error == std::errc();
}

bool take(std::string_view& text, char mark) {
  const bool found = text.starts_with(mark);
  if (found) text.remove_prefix(1);
  return found;
}

void check_stages(const Recipe& r) {
  const auto [least, most] = Recipe::range_of("l1");
  std::int64_t before = 0;
  for (const L1Stage& stage : r.l1_stages) {
    if (stage.step < before || stage.step > kMaxCount) {
      io::fail_argument("recipe", "l1_stages: expected steps that ascend, got {} after {}",
                        stage.step, before);
    }
    if (!(stage.coefficient >= least && stage.coefficient <= most)) {
      io::fail_argument("recipe", "l1_stages: expected coefficients of {} to {}, got {}", least,
                        most, stage.coefficient);
    }
    before = stage.step;
  }
}

// Takes out the keys that recipes had up to version 3 of a trainer's state.
void take_out_removed(json& recipe, const std::string& file) {
  struct Removed {
    const char* key;
    json unused;  // the value of a run that did without
    const char* instead;
  };
  const Removed removed[] = {{"teacher", "", "twell.hf.DistillationTrainer"},
                             {"anneal_steps", 0, "twell.hf.AnnealingCallback"},
                             {"share", 0.0, "twell.hf.ThresholdCallback"}};
  for (const auto& [key, unused, instead] : removed) {
    if (recipe.value(key, unused) != unused) {
      io::fail_file(file,
                    "recipe: {}: the run used what twell train no longer has: go on in Python, "
                    "with {}, or start a new run from these weights with --model",
                    key, instead);
    }
    recipe.erase(key);
  }
  // Without those three they meant nothing.
  for (const char* key : {"hidden_weight", "temperature", "anneal_from", "share_steps"}) {
    recipe.erase(key);
  }
}

}  // namespace

std::string written(const std::vector<L1Stage>& stages) {
  std::string out;
  for (const L1Stage& stage : stages) {
    out += fmt::format("{}{}:{}", out.empty() ? "" : ",", stage.step, stage.coefficient);
  }
  return out;
}

std::vector<L1Stage> parse_l1_stages(std::string_view text) {
  std::vector<L1Stage> out;
  std::string_view rest = text;
  bool good = true;
  while (good && !rest.empty()) {
    L1Stage& stage = out.emplace_back();
    good = take_number(rest, stage.step) && take(rest, ':') && take_number(rest, stage.coefficient);
    if (good && !rest.empty()) good = take(rest, ',') && !rest.empty();
  }
  if (good) return out;
  io::fail_argument("l1_stages", "expected steps and coefficients, as in 0:0,200:1e-5, got {}",
                    io::in_quotes(text));
}

const char* name_of(ComputeType type) {
  return type == ComputeType::automatic ? "auto" : type == ComputeType::bf16 ? "bf16" : "fp32";
}

ComputeType parse_compute_type(std::string_view text) {
  for (const auto type : {ComputeType::automatic, ComputeType::bf16, ComputeType::fp32}) {
    if (text == name_of(type)) return type;
  }
  io::fail_argument("compute", "expected auto, bf16 or fp32, got \"{}\"", text);
}

ComputeType resolve(ComputeType type, at::Device device) {
  if (type != ComputeType::automatic) return type;
  if (!device.is_cpu()) return ComputeType::bf16;  // tensor cores multiply it everywhere
  return cpu_tier_available(CpuTier::avx512) ? ComputeType::bf16 : ComputeType::fp32;
}

std::int64_t Recipe::scaled(std::int64_t part) const {
  if (length() == steps) return part;
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>(static_cast<Wide>(part) * length() / steps);
}

void Recipe::extend(std::int64_t total) {
  if (shortened_to > 0 && total < steps) {
    shortened_to = total;
  } else {
    steps = total;
    shortened_to = 0;
  }
}

std::pair<double, double> Recipe::range_of(std::string_view field) {
  std::pair<double, double> out;
  Recipe any;
  visit_numbers(any, [&](std::string_view name, auto, auto lowest, auto highest) {
    if (name == field) out = {static_cast<double>(lowest), static_cast<double>(highest)};
  });
  return out;
}

void Recipe::validate() const {
  if (io::find_invalid_utf8(model) != std::string_view::npos) {
    io::fail_argument("recipe", "model: the path {} is no UTF-8, which checkpoints hold it in",
                      io::in_quotes(model));
  }
  visit_numbers(*this, [](const char* name, auto value, auto lowest, auto highest) {
    using Value = decltype(value);
    // Written so that NaN fails too.
    if (value >= static_cast<Value>(lowest) && value <= static_cast<Value>(highest)) return;
    io::fail_argument("recipe", "{}: expected {} to {}, got {}", name, lowest, highest, value);
  });
  check_stages(*this);
  if (shortened_to > steps) {
    io::fail_argument("recipe", "shortened_to: expected at most the {} steps, got {}", steps,
                      shortened_to);
  }
  if (warmup_steps >= steps && warmup_steps > 0) {
    io::fail_argument("recipe", "warmup_steps: expected fewer than the {} steps of the run, got {}",
                      steps, warmup_steps);
  }
}

std::string Recipe::to_json() const {
  json out = json::object();
  visit_numbers(*this, [&out](const char* name, auto value, auto, auto) { out[name] = value; });
  out["model"] = model;
  out["l1_stages"] = written(l1_stages);
  out["compute"] = name_of(compute);
  out["recompute"] = recompute;
  out["sparse"] = sparse;
  out["seed"] = seed;
  return out.dump(2);
}

bool Recipe::may_change(std::string_view field) {
  constexpr std::array<std::string_view, 10> kFree = {
      "steps",     "time_budget_s", "shortened_to", "recompute",  "sparse",
      "log_every", "eval_every",    "eval_windows", "save_every", "keep_checkpoints"};
  return std::ranges::find(kFree, field) != kFree.end();
}

void Recipe::check_resumed(const Recipe& saved, const std::string& file) const {
  const json before = json::parse(saved.to_json()), now = json::parse(to_json());
  for (const auto& [field, value] : before.items()) {
    if (may_change(field) || now[field] == value) continue;
    io::fail_file(file, "{}: the run has {}, {} is asked for; a resumed run cannot change it",
                  field, value.dump(), now[field].dump());
  }
}

Recipe Recipe::from_json(std::string_view text, const std::string& file) {
  json in = json::parse(text, nullptr, false);
  if (!in.is_object()) io::fail_file(file, "recipe: expected a JSON object");
  take_out_removed(in, file);
  Recipe out;
  json known = json::parse(out.to_json());
  for (const auto& [name, value] : in.items()) {
    if (!known.contains(name)) io::fail_file(file, "recipe: unknown key \"{}\"", name);
    const json& example = known[name];
    const bool fits = example.is_number_integer() ? value.is_number_integer()
                      : example.is_number()       ? value.is_number()
                                                  : value.type() == example.type();
    if (!fits) io::fail_file(file, "recipe: {}: expected {}", name, example.type_name());
  }
  for (const auto& [name, value] : known.items()) {
    if (!in.contains(name)) io::fail_file(file, "recipe: {} is missing", name);
  }
  visit_numbers(out, [&in](const char* name, auto& field, auto, auto) {
    field = in[name].get<std::decay_t<decltype(field)>>();
  });
  out.model = in["model"].get<std::string>();
  out.l1_stages = parse_l1_stages(in["l1_stages"].get<std::string>());
  out.compute = parse_compute_type(in["compute"].get<std::string>());
  out.recompute = in["recompute"].get<bool>();
  out.sparse = in["sparse"].get<bool>();
  out.seed = in["seed"].get<std::uint64_t>();
  out.validate();
  return out;
}

}  // namespace twell::lm
