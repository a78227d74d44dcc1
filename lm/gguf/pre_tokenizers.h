// How a text is cut into words before byte pairs are merged, by the names that llama.cpp has for it
// (tokenizer.ggml.pre), and as tokenizer.json says it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

struct NamedPreTokenizer {
  // A word is cut, then the parts by the next step. The last one makes symbols of bytes.
  struct Step {
    enum class Kind { digits, split, bytes, words };
    Kind kind;
    std::string pattern = {};  // of split: matches stand alone

    bool operator==(const Step&) const = default;
  };

  const char* name;
  std::vector<Step> steps;
  bool nfc = false;            // the text is normalised first
  bool ignore_merges = false;  // words of the vocabulary are not merged but taken
  bool adds_begin = false;     // where a file does not say whether

  nlohmann::ordered_json json() const;  // pre_tokenizer of tokenizer.json
};

// Those whose patterns are known from the sources of llama.cpp.
const std::vector<NamedPreTokenizer>& named_pre_tokenizers();
const NamedPreTokenizer* find_pre_tokenizer(std::string_view name);  // null: unknown
// Of a pre_tokenizer in tokenizer.json; empty where it is none that can be named.
std::vector<NamedPreTokenizer::Step> pre_tokenizer_steps(const nlohmann::json& json);

}  // namespace twell::io
