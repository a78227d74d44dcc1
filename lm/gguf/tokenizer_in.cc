#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "files/file_error.h"
#include "files/note.h"
#include "gguf/pre_tokenizers.h"
#include "gguf/tokenizer_files.h"
#include "gguf/tokenizer_keys.h"
#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kLongestPiece = 1024;  // whose parts are looked for

class TokenizerReader {
 public:
  TokenizerReader(const GgufMetadata& values, const ModelConfig& config)
      : values_(values), config_(config) {}

  TokenizerFiles read() && {
    read_tokens();
    const auto kind = values_.string(gguf_keys::kModel);
    if (kind == gguf_keys::kOfBytes) {
      of_bytes();
    } else if (kind == gguf_keys::kOfCharacters) {
      of_characters();
    } else {
      fail_unsupported(values_.file(),
                       "tokenizer.ggml.model {} is not supported (supported: gpt2, llama); "
                       "twell convert --tokenizer takes another",
                       in_quotes(kind));
    }
    return {document_.dump() + "\n", config_json().dump(2) + "\n"};
  }

 private:
  void read_tokens() {
    tokens_ = values_.strings(gguf_keys::kTokens);
    types_ = values_.integers(gguf_keys::kTypes);
    const std::string& file = values_.file();
    if (tokens_.empty()) {
      fail_file(file,
                "has no tokenizer (tokenizer.ggml.tokens); twell convert --tokenizer takes one");
    }
    if (std::ssize(tokens_) > config_.vocab_size) {
      fail_file(file, "has {} tokens, but the embedding has {} rows", tokens_.size(),
                config_.vocab_size);
    }
    if (types_.empty()) types_.assign(tokens_.size(), gguf_keys::kNormalToken);
    if (types_.size() != tokens_.size()) {
      fail_file(file, "has {} tokens and {} tokenizer.ggml.token_type", tokens_.size(),
                types_.size());
    }
    ids_.reserve(tokens_.size());
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (is_placeholder(id)) continue;
      if (find_invalid_utf8(tokens_[id]) != std::string_view::npos) {
        fail_file(file, "token {} ({}) is no UTF-8", id, in_quotes(tokens_[id]));
      }
      const auto [found, fresh] = ids_.emplace(tokens_[id], id);
      if (!fresh) {
        fail_file(file, "tokens {} and {} are both {}", found->second, id, in_quotes(tokens_[id]));
      }
    }
  }

  // For an id that the tokenizer does not have.
  bool is_placeholder(std::size_t id) const {
    return types_[id] == gguf_keys::kUnusedToken && tokens_[id] == gguf_keys::placeholder_token(id);
  }

  std::optional<std::size_t> id_of(const char* key) const {
    return values_.token(key, std::ssize(tokens_));
  }

  OrderedJson vocabulary() const {
    OrderedJson out = OrderedJson::object();
    auto& list = out.get_ref<OrderedJson::object_t&>();  // of keys that are known to be new
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (!is_placeholder(id)) list.push_back({std::string(tokens_[id]), id});
    }
    return out;
  }

  OrderedJson added_tokens() const {
    OrderedJson out = OrderedJson::array();
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      const bool special =
          types_[id] == gguf_keys::kControlToken || types_[id] == gguf_keys::kUnknownToken;
      if (!special && types_[id] != gguf_keys::kUserDefinedToken) continue;
      out.push_back({{"id", id},
                     {"content", tokens_[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
    }
    return out;
  }

  // What is put around a text.
  OrderedJson post_processor(bool adds_begin) const {
    const auto adds = [&](const char* flag, bool fallback, std::optional<std::int64_t> id) {
      const bool named = id && *id < std::ssize(tokens_);
      const bool wanted = values_.boolean(flag, fallback && named);
      if (wanted && !named) {
        fail_file(values_.file(),
                  "{} is true, but no such token is named; twell convert --tokenizer takes another",
                  flag);
      }
      return wanted;
    };
    const std::optional<std::int64_t> bos = config_.bos_token_id;
    const std::optional<std::int64_t> eos =
        config_.eos_token_ids.empty() ? std::nullopt
                                      : std::optional<std::int64_t>(config_.eos_token_ids[0]);
    OrderedJson around = OrderedJson::array(), tokens = OrderedJson::object();
    const auto add = [&](std::int64_t id) {
      const std::string name(tokens_[static_cast<std::size_t>(id)]);
      around.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
      tokens[name] = {
          {"id", name}, {"ids", OrderedJson::array({id})}, {"tokens", OrderedJson::array({name})}};
    };
    if (adds(gguf_keys::kAddBegin, adds_begin, bos)) add(*bos);
    around.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    if (adds(gguf_keys::kAddEnd, false, eos)) add(*eos);
    if (tokens.empty()) return nullptr;
    OrderedJson pair = around;
    for (OrderedJson second : around) {
      second.begin().value()["type_id"] = 1;
      if (second.contains("Sequence")) second["Sequence"]["id"] = "B";
      pair.push_back(second);
    }
    return {{"type", "TemplateProcessing"},
            {"single", around},
            {"pair", pair},
            {"special_tokens", tokens}};
  }

  void put_together(const OrderedJson& normalizer, const OrderedJson& pre_tokenizer,
                    bool adds_begin, const OrderedJson& decoder, const OrderedJson& model) {
    document_ = {{"version", "1.0"},
                 {"truncation", nullptr},
                 {"padding", nullptr},
                 {"added_tokens", added_tokens()},
                 {"normalizer", normalizer},
                 {"pre_tokenizer", pre_tokenizer},
                 {"post_processor", post_processor(adds_begin)},
                 {"decoder", decoder},
                 {"model", model}};
  }

  static OrderedJson model(bool of_bytes) {
    return {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", !of_bytes},
            {"byte_fallback", !of_bytes},
            {"ignore_merges", false}};
  }

  const NamedPreTokenizer& named() const {
    const char* key = gguf_keys::kPre;
    if (!values_.has(key)) {
      note(
          fmt::format("{}: has no {}, as files of old versions of llama.cpp; words are cut as "
                      "llama.cpp cuts them then, perhaps not as the model learned them",
                      values_.file(), key));
    }
    const auto name = values_.string(key, "default");
    if (const NamedPreTokenizer* found = find_pre_tokenizer(name)) return *found;
    std::vector<std::string_view> names;
    for (const NamedPreTokenizer& one : named_pre_tokenizers()) names.emplace_back(one.name);
    fail_unsupported(
        values_.file(),
        "{} {} is not supported (supported: {}); twell convert --tokenizer takes another", key,
        in_quotes(name), fmt::join(names, ", "));
  }

  // Without merges a text is single bytes, so a vocabulary of more says that merges are missing.
  void refuse_words() const {
    const auto is_byte = [](std::string_view token) {  // one character stands for it
      return std::ranges::count_if(token, [](char c) { return (c & 0xC0) != 0x80; }) == 1;
    };
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] != gguf_keys::kNormalToken || is_byte(tokens_[id])) continue;
      fail_file(values_.file(),
                "has no {}, of which token {} ({}) would be made; twell convert --tokenizer takes "
                "another "
                "tokenizer",
                gguf_keys::kMerges, id, in_quotes(tokens_[id]));
    }
  }

  void of_bytes() {
    const NamedPreTokenizer& pre = named();
    OrderedJson merges = OrderedJson::array();
    for (const std::string_view merge : values_.strings(gguf_keys::kMerges)) {
      // The first token may be a space of an old file, so the space between is not the first byte.
      const std::size_t space = merge.find(' ', 1);
      if (space == merge.npos || find_invalid_utf8(merge) != std::string_view::npos) {
        fail_file(values_.file(), "merge {} is {}, expected two tokens with a space between",
                  merges.size(), in_quotes(merge));
      }
      merges.push_back(OrderedJson::array({merge.substr(0, space), merge.substr(space + 1)}));
    }
    if (merges.empty()) refuse_words();
    OrderedJson bpe = model(/*of_bytes=*/true);
    bpe["ignore_merges"] = pre.ignore_merges;
    bpe["vocab"] = vocabulary();
    bpe["merges"] = std::move(merges);
    const OrderedJson normalizer = pre.nfc ? OrderedJson{{"type", "NFC"}} : OrderedJson(nullptr);
    const OrderedJson decoder = {{"type", "ByteLevel"},
                                 {"add_prefix_space", true},
                                 {"trim_offsets", true},
                                 {"use_regex", true}};
    put_together(normalizer, pre.json(), pre.adds_begin, decoder, bpe);
  }

  // Of SentencePiece's merges those that give the piece with the best score come first. Of pieces
  // that are looked for in a text, and bytes, there are none.
  OrderedJson merges_by_score() const {
    const std::vector<float> scores = values_.floats(gguf_keys::kScores);
    if (scores.size() != tokens_.size()) {
      fail_file(values_.file(), "has {} tokens and {} tokenizer.ggml.scores", tokens_.size(),
                scores.size());
    }
    struct Found {
      float score;
      std::string_view left, right;
    };
    std::vector<Found> found;
    const auto is_piece = [&](std::string_view text) {
      const auto id = ids_.find(text);
      return id != ids_.end() && types_[id->second] == gguf_keys::kNormalToken;
    };
    for (std::size_t id = 0; id < tokens_.size(); ++id) {
      if (types_[id] != gguf_keys::kNormalToken) continue;
      const std::string_view whole = tokens_[id];
      if (!std::isfinite(scores[id]) || whole.size() > kLongestPiece) {
        fail_file(values_.file(),
                  "token {} ({}) has the score {} and {} bytes, expected a finite "
                  "number and at most {}",
                  id, in_quotes(whole), scores[id], whole.size(), kLongestPiece);
      }
      for (std::size_t at = 1; at < whole.size(); ++at) {
        if ((static_cast<unsigned char>(whole[at]) & 0xC0U) == 0x80U) continue;
        const Found one{scores[id], whole.substr(0, at), whole.substr(at)};
        if (is_piece(one.left) && is_piece(one.right)) found.push_back(one);
      }
    }
    // As transformers orders them: of equal scores the longest left part first.
    std::ranges::stable_sort(found, [](const Found& a, const Found& b) {
      return std::tuple(a.score, a.left.size(), a.right.size()) >
             std::tuple(b.score, b.left.size(), b.right.size());
    });
    OrderedJson out = OrderedJson::array();
    for (const Found& one : found) out.push_back(OrderedJson::array({one.left, one.right}));
    return out;
  }

  void of_characters() {
    if (values_.boolean("tokenizer.ggml.remove_extra_whitespaces", false)) {
      fail_unsupported(values_.file(),
                       "tokenizer.ggml.remove_extra_whitespaces is not supported; --tokenizer "
                       "names another tokenizer");
    }
    const bool prefix = values_.boolean(gguf_keys::kAddSpace, true);
    const OrderedJson to_mark = {
        {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", gguf_keys::kSpaceMark}};
    const OrderedJson to_space = {
        {"type", "Replace"}, {"pattern", {{"String", gguf_keys::kSpaceMark}}}, {"content", " "}};
    OrderedJson normalizers = OrderedJson::array();
    OrderedJson decoders =
        OrderedJson::array({to_space, {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
    if (prefix) {
      normalizers.push_back({{"type", "Prepend"}, {"prepend", gguf_keys::kSpaceMark}});
      decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    }
    normalizers.push_back(to_mark);
    OrderedJson bpe = model(/*of_bytes=*/false);
    bpe["unk_token"] = tokens_[id_of(gguf_keys::kUnknown).value_or(0)];
    bpe["vocab"] = vocabulary();
    bpe["merges"] = merges_by_score();
    put_together({{"type", "Sequence"}, {"normalizers", normalizers}}, nullptr, true,
                 {{"type", "Sequence"}, {"decoders", decoders}}, bpe);
  }

  OrderedJson config_json() const {
    // The file's tokenizer.json counts as it is, for this class alone.
    OrderedJson out = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                       {"clean_up_tokenization_spaces", false},
                       {"model_max_length", config_.max_position_embeddings}};
    const auto put = [&](const char* key, std::optional<std::size_t> id) {
      if (id && *id < tokens_.size()) out[key] = tokens_[*id];
    };
    if (config_.bos_token_id) put("bos_token", *config_.bos_token_id);
    if (!config_.eos_token_ids.empty()) put("eos_token", config_.eos_token_ids[0]);
    put("unk_token", id_of(gguf_keys::kUnknown));
    put("pad_token", id_of(gguf_keys::kPadding));
    const auto chat = values_.string(gguf_keys::kChatTemplate, "");
    if (find_invalid_utf8(chat) != std::string_view::npos) {
      fail_file(values_.file(), "tokenizer.chat_template is no UTF-8");
    }
    if (!chat.empty()) out["chat_template"] = chat;
    return out;
  }

  const GgufMetadata& values_;
  const ModelConfig& config_;
  std::vector<std::string_view> tokens_;
  std::vector<std::int64_t> types_;
  std::unordered_map<std::string_view, std::size_t> ids_;
  OrderedJson document_;
};

}  // namespace

TokenizerFiles tokenizer_files_of(const GgufMetadata& values, const ModelConfig& config) {
  TokenizerFiles out = TokenizerReader(values, config).read();
  Tokenizer::from_json(out.tokenizer, values.file());  // throws where the values contradict
  return out;
}

}  // namespace twell::io
