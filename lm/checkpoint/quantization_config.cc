#include "checkpoint/quantization_config.h"

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "files/file_error.h"
#include "files/json_reader.h"

namespace twell::io {
namespace {

constexpr std::string_view kMethod = "compressed-tensors";
constexpr std::string_view kPacked = "pack-quantized";
constexpr std::string_view kRegex = "re:";
constexpr std::int64_t kSmallestGroup = 32, kLargestGroup = 128;
constexpr std::size_t kMostTargets = 10'000;

// A target "re:...", compiled. PCRE2 and Python's re agree on what such targets use.
class Pattern {
 public:
  Pattern(std::string_view pattern, const std::string& file)
      : file_(file), code_(nullptr, pcre2_code_free) {
    constexpr std::size_t kLongest = 1000;
    if (pattern.size() > kLongest) {
      fail_file(file, "quantization_config: a target of {} bytes is too long", pattern.size());
    }
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
    if (code_ != nullptr) return;
    std::array<PCRE2_UCHAR, 200> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    fail_file(file, "quantization_config: the target {} is no regular expression: {}",
              in_quotes(pattern), reinterpret_cast<const char*>(message.data()));
  }

  // Whether it holds at the begin of `name`, as Python's re.match.
  bool matches(const std::string& name) const {
    constexpr std::uint32_t kMostSteps = 100'000;
    const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits(
        pcre2_match_context_create(nullptr), pcre2_match_context_free);
    pcre2_set_match_limit(limits.get(), kMostSteps);
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr), pcre2_match_data_free);
    const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                  name.size(), 0, PCRE2_ANCHORED, data.get(), limits.get());
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
      fail_file(file_, "quantization_config: a target takes too many steps on the name {}",
                in_quotes(name));
    }
    return found >= 0;
  }

 private:
  const std::string& file_;
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code_;
};

bool matches_name(const std::string& target, const std::string& name, const std::string& file) {
  if (!target.starts_with(kRegex)) return target == name;
  return Pattern(std::string_view(target).substr(kRegex.size()), file).matches(name);
}

std::vector<std::string> read_targets(const JsonObject& json, const char* key) {
  std::vector<std::string> out;
  for (const Json& target : json.array(key)) {
    if (!target.is_string()) {
      fail_file(json.file(), "{} holds {}, expected strings", json.path_of(key), kind_of(target));
    }
    out.push_back(target.get<std::string>());
    if (out.back().starts_with(kRegex)) {  // or throws
      Pattern(std::string_view(out.back()).substr(kRegex.size()), json.file());
    }
    if (out.size() > kMostTargets) {
      fail_file(json.file(), "{} holds more than {} names", json.path_of(key), kMostTargets);
    }
  }
  return out;
}

void refuse_key(const JsonObject& json, const char* key, std::string_view what) {
  if (json.has(key) && !(json.value(key).is_object() && json.value(key).empty())) {
    fail_unsupported(json.file(), "{}: {} not supported", json.path_of(key), what);
  }
}

bool is_packed(const JsonObject& json, const std::string& format) {
  if (format == kPacked) return true;
  if (format == "int-quantized" || format == "naive-quantized") return false;
  fail_unsupported(json.file(),
                   "{}: the format {} is not supported (supported: {}, int-quantized, "
                   "naive-quantized)",
                   json.path_of("format"), in_quotes(format), kPacked);
}

// actorder "weight" changed how the codes were found, not how they are stored.
void refuse_order(const JsonObject& weights) {
  const char* key = "actorder";
  if (!weights.has(key)) return;
  const Json& order = weights.value(key);
  if (order == false || order == "weight" || order == "static") return;
  fail_unsupported(weights.file(),
                   "{}: groups in the order of activations (g_idx) are not supported",
                   weights.path_of(key));
}

std::int64_t read_group(const JsonObject& weights) {
  const char* key = "group_size";
  const std::int64_t size = weights.integer(key, -1, 1 << 24, -1);
  const std::string strategy = weights.string("strategy", size > 0           ? "group"
                                                          : weights.has(key) ? "channel"
                                                                             : "tensor");
  if (strategy == "channel") return 0;
  if (strategy != "group") {
    fail_unsupported(weights.file(), "{}: {} is not supported (supported: channel, group)",
                     weights.path_of("strategy"), in_quotes(strategy));
  }
  if (size < kSmallestGroup || size > kLargestGroup || size % kSmallestGroup != 0) {
    fail_unsupported(weights.file(),
                     "{}: groups of {} are not supported (supported: 32, 64, 96, 128)",
                     weights.path_of(key), size);
  }
  return size;
}

WeightScheme read_scheme(const JsonObject& group, const std::string& model_format) {
  refuse_key(group, "input_activations", "quantised activations are");
  refuse_key(group, "output_activations", "quantised activations are");
  const JsonObject weights = group.object("weights");
  WeightScheme out;
  if (const std::string type = weights.string("type", "int"); type != "int") {
    fail_unsupported(weights.file(),
                     "{}: weights of the type {} are not supported (supported: int)",
                     weights.path_of("type"), in_quotes(type));
  }
  out.bits = static_cast<int>(weights.integer("num_bits", 1, 64, 8));
  if (out.bits != 8 && out.bits != 4) {
    fail_unsupported(weights.file(), "{}: weights of {} bits are not supported (supported: 8, 4)",
                     weights.path_of("num_bits"), out.bits);
  }
  if (!weights.boolean("symmetric", true)) {
    fail_unsupported(weights.file(), "{}: asymmetric weights (with zero points) are not supported",
                     weights.path_of("symmetric"));
  }
  if (weights.has("dynamic") && weights.value("dynamic") != false) {
    fail_unsupported(weights.file(), "{}: weights that are quantised as they run are not supported",
                     weights.path_of("dynamic"));
  }
  refuse_order(weights);
  out.group = read_group(weights);
  out.packed = is_packed(group, group.string("format", model_format));
  if (out.bits == 4 && !out.packed) {
    fail_unsupported(group.file(), "{}: codes of 4 bits are read from {} alone",
                     group.path_of("format"), kPacked);
  }
  return out;
}

void refuse_other_schemes(const JsonObject& json) {
  const std::string method = json.string("quant_method", "");
  if (method != kMethod) {
    fail_unsupported(json.file(),
                     "{}: {} is not supported (supported: {}, weights alone, int8 and "
                     "int4)",
                     json.path_of("quant_method"), method.empty() ? "none" : in_quotes(method),
                     kMethod);
  }
  const std::string status = json.string("quantization_status", "compressed");
  if (status != "compressed") {
    fail_unsupported(json.file(), "{}: {} is not supported: the weights are not stored as codes",
                     json.path_of("quantization_status"), in_quotes(status));
  }
  refuse_key(json, "kv_cache_scheme", "a quantised cache is");
  refuse_key(json, "transform_config", "rotated activations are");
  if (json.has("sparsity_config")) {
    const JsonObject sparsity = json.object("sparsity_config");
    const std::string format = sparsity.string("format", "dense");
    if (format != "dense") {
      fail_unsupported(json.file(), "{}: {} is not supported", sparsity.path_of("format"),
                       in_quotes(format));
    }
  }
}

}  // namespace

std::string text_of(const WeightScheme& scheme) {
  return scheme.group == 0 ? fmt::format("int{}, a scale for each row", scheme.bits)
                           : fmt::format("int{}, groups of {}", scheme.bits, scheme.group);
}

QuantizationConfig QuantizationConfig::from_json(const JsonObject& json) {
  refuse_other_schemes(json);
  const std::string format = json.string("format", "dense");
  QuantizationConfig out;
  std::set<std::string> seen;
  const JsonObject groups = json.object("config_groups");
  for (const auto& [name, value] : groups.json().items()) {
    const std::string path = groups.path_of(in_quotes(name).c_str());
    const JsonObject group(value, json.file(), path);
    Group& one = out.groups.emplace_back();
    one.targets = read_targets(group, "targets");
    one.scheme = read_scheme(group, format);
    for (const std::string& target : one.targets) {
      if (seen.insert(target).second) continue;
      fail_file(json.file(), "{}: the target {} stands twice", path, in_quotes(target));
    }
    if (seen.size() > kMostTargets) {
      fail_file(json.file(), "{} hold more than {} targets", json.path_of("config_groups"),
                kMostTargets);
    }
  }
  if (json.has("ignore")) out.ignore = read_targets(json, "ignore");
  return out;
}

nlohmann::ordered_json QuantizationConfig::to_json() const {
  using OrderedJson = nlohmann::ordered_json;
  const auto format_of = [](const WeightScheme& s) { return s.packed ? kPacked : "int-quantized"; };
  OrderedJson groups_json = OrderedJson::object();
  const std::size_t digits = fmt::formatted_size("{}", groups.size());  // in order when read again
  for (const Group& group : groups) {
    const WeightScheme& s = group.scheme;
    OrderedJson weights = {
        {"num_bits", s.bits},
        {"type", "int"},
        {"symmetric", true},
        {"strategy", s.group == 0 ? "channel" : "group"},
        {"group_size", s.group == 0 ? OrderedJson(nullptr) : OrderedJson(s.group)},
        {"dynamic", false}};
    groups_json[fmt::format("group_{:0{}}", groups_json.size(), digits)] = {
        {"targets", group.targets},
        {"weights", weights},
        {"input_activations", nullptr},
        {"output_activations", nullptr},
        {"format", format_of(s)}};
  }
  const bool one_format = std::ranges::all_of(groups, [&](const Group& group) {
    return group.scheme.packed == groups.front().scheme.packed;
  });
  return {{"quant_method", kMethod},
          {"quantization_status", "compressed"},
          {"format",
           groups.empty() || !one_format ? "mixed-precision" : format_of(groups.front().scheme)},
          {"config_groups", groups_json},
          {"ignore", ignore},
          {"kv_cache_scheme", nullptr}};
}

// Of several targets that hold, a name goes before a regular expression, that before a class, and
// among equals the first in the alphabet: the order of compressed-tensors.
std::optional<WeightScheme> QuantizationConfig::scheme_of(const std::string& module,
                                                          std::string_view module_class,
                                                          const std::string& file) const {
  const auto holds = [&](const std::string& target) {
    return target == module_class || matches_name(target, module, file);
  };
  const auto rank = [&](const std::string& target) {
    return std::tuple(target == module_class, target.find(kRegex) != target.npos, target);
  };
  const std::string* best = nullptr;
  std::optional<WeightScheme> out;
  for (const Group& group : groups) {
    for (const std::string& target : group.targets) {
      if (!holds(target) || (best != nullptr && rank(*best) < rank(target))) continue;
      best = &target;
      out = group.scheme;
    }
  }
  if (out && std::ranges::any_of(ignore, holds)) return std::nullopt;
  return out;
}

}  // namespace twell::io
