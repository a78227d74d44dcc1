#include "checkpoint/generation_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/json_reader.h"
#include "files/mapped_file.h"

namespace twell::io {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr double kMostBias = 1e30;  // more than any logit, and a float
constexpr double kNever = -std::numeric_limits<double>::infinity();

// Keys that change what is written and are not heeded here, with the number that means off. Null,
// false and what is empty are off too.
struct Unheeded {
  const char* key;
  double off;
  bool of_sampling = false;  // of no effect where tokens are not drawn
};
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr Unheeded kUnheeded[] = {
    {"no_repeat_ngram_size", 0},
    {"encoder_no_repeat_ngram_size", 0},
    {"encoder_repetition_penalty", 1},
    {"forced_bos_token_id", kNoNumber},
    {"forced_eos_token_id", kNoNumber},
    {"exponential_decay_length_penalty", kNoNumber},
    {"min_length", 0},
    {"max_time", kNoNumber},
    {"num_beams", 1},
    {"num_beam_groups", 1},
    {"num_return_sequences", 1},
    {"diversity_penalty", 0},
    {"penalty_alpha", 0},
    {"guidance_scale", 1},
    {"typical_p", 1, true},
    {"epsilon_cutoff", 0, true},
    {"eta_cutoff", 0, true},
    {"top_h", kNoNumber, true},
    {"constraints", kNoNumber},
    {"force_words_ids", kNoNumber},
    {"dola_layers", kNoNumber},
    {"token_healing", kNoNumber},
    {"watermarking_config", kNoNumber},
};

bool is_off(const Json& value, double off) {
  if (value.is_number()) return value.get<double>() == off;
  return value == false || ((value.is_array() || value.is_object()) && value.empty());
}

class Reader {
 public:
  Reader(const Json& document, const std::string& file) : json_(document, file) {}

  GenerationConfig read() && {
    if (json_.has("do_sample")) out_.do_sample = json_.boolean("do_sample");
    out_.temperature = number("temperature", 0.0, 1e6);
    out_.top_p = number("top_p", 0.0, 1.0);
    out_.min_p = number("min_p", 0.0, 1.0);
    out_.repetition_penalty = number("repetition_penalty", 1e-6, 1e6);
    read_top_k();
    if (json_.has("max_new_tokens")) {
      out_.max_new_tokens = json_.integer("max_new_tokens", 1, kMostTokens);
    }
    if (json_.has("min_new_tokens")) {
      out_.min_new_tokens = json_.integer("min_new_tokens", 0, kMostTokens);
    }
    for (const std::int64_t id : ids("suppress_tokens")) out_.biases.push_back({id, kNever});
    for (const std::int64_t id : ids("begin_suppress_tokens")) {
      out_.biases.push_back({id, kNever, /*steps=*/1});
    }
    read_bad_words();
    read_sequence_bias();
    read_stop_strings();
    // Of the prompt and the answer together; a number of new tokens counts before it. 20 is what
    // transformers takes where nobody said anything, and may be written for that.
    const bool says_length = json_.has("max_length") && json_.value("max_length") != 20;
    if (says_length && !out_.max_new_tokens) tell("max_length");
    const bool draws = out_.do_sample.value_or(true);
    for (const Unheeded& one : kUnheeded) {
      if (!json_.has(one.key) || (one.of_sampling && !draws)) continue;
      if (!is_off(json_.value(one.key), one.off)) out_.unheeded.emplace_back(one.key);
    }
    return std::move(out_);
  }

 private:
  std::optional<double> number(const char* key, double low, double high) const {
    if (!json_.has(key)) return {};
    return json_.number(key, low, high);
  }

  [[noreturn]] void fail(const char* key, const char* expected) const {
    fail_file(json_.file(), "{}: expected {}", key, expected);
  }

  // All tokens are 0 in transformers, -1 in vLLM. Some files have 50.0.
  void read_top_k() {
    if (!json_.has("top_k")) return;
    const double count = json_.number("top_k", -1, static_cast<double>(kMostTokens));
    if (count != std::floor(count)) fail("top_k", "a whole number");
    out_.top_k = std::max<std::int64_t>(static_cast<std::int64_t>(count), 0);
  }

  std::int64_t id_of(const char* key, const Json& value) const {
    if (!value.is_number_integer()) fail(key, "ids of tokens");
    return value.get<std::int64_t>();
  }

  std::vector<std::int64_t> ids(const char* key) const {
    std::vector<std::int64_t> out;
    if (!json_.has(key)) return out;
    for (const Json& id : json_.array(key)) out.push_back(id_of(key, id));
    return out;
  }

  // Of several tokens the last would be forbidden where the others stand before it. As in
  // transformers, an end of a text is no bad word.
  void read_bad_words() {
    constexpr const char* kKey = "bad_words_ids";
    if (!json_.has(kKey)) return;
    const Json& ends = json_.json().value("eos_token_id", Json());
    const auto is_end = [&](const Json& id) {
      return id == ends ||
             (ends.is_array() && std::find(ends.begin(), ends.end(), id) != ends.end());
    };
    for (const Json& word : json_.array(kKey)) {
      if (!word.is_array() || word.empty()) fail(kKey, "lists of ids of tokens");
      if (word.size() > 1) {
        tell(kKey);
      } else if (const std::int64_t id = id_of(kKey, word[0]); !is_end(word[0])) {
        out_.biases.push_back({id, kNever});
      }
    }
  }

  void read_sequence_bias() {
    constexpr const char* kKey = "sequence_bias";
    if (!json_.has(kKey)) return;
    const Json& pairs = json_.value(kKey);
    for (const Json& pair : pairs.is_array() ? pairs : Json::array({pairs})) {
      const bool whole = pair.is_array() && pair.size() == 2 && pair[0].is_array() &&
                         pair[0].size() == 1 && pair[1].is_number();
      if (whole) {
        const double amount = std::clamp(pair[1].get<double>(), -kMostBias, kMostBias);
        out_.biases.push_back({id_of(kKey, pair[0][0]), amount});
      } else if (!pair.empty()) {
        tell(kKey);
      }
    }
  }

  void read_stop_strings() {
    constexpr const char* kKey = "stop_strings";
    if (!json_.has(kKey)) return;
    const Json& said = json_.value(kKey);
    for (const Json& text : said.is_array() ? said : Json::array({said})) {
      if (!text.is_string()) fail(kKey, "texts");
      if (auto stop = text.get<std::string>(); !stop.empty()) {
        out_.stop_strings.push_back(std::move(stop));
      }
    }
  }

  void tell(const char* key) {
    if (std::ranges::find(out_.unheeded, key) == out_.unheeded.end()) {
      out_.unheeded.emplace_back(key);
    }
  }

  JsonObject json_;
  GenerationConfig out_;
};

}  // namespace

GenerationConfig GenerationConfig::from_json(std::string_view text, const std::string& file) {
  const Json document = parse_python_json(text, file);
  return Reader(document, file).read();
}

GenerationConfig load_generation_config(const std::filesystem::path& directory) {
  const auto file = directory / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) return {};
  return GenerationConfig::from_json(read_file(file, 16ULL << 20), file.string());
}

}  // namespace twell::io
