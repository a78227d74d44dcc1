#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/json_reader.h"
#include "files/note.h"
#include "gguf/gguf_writer.h"
#include "gguf/pre_tokenizers.h"
#include "gguf/tokenizer_files.h"
#include "gguf/tokenizer_keys.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
using Pair = std::pair<std::string, std::string>;

// A list of steps, of one that may be none, one, or a sequence of them.
std::vector<JsonObject> steps_of(const JsonObject& json, const char* key, const char* list) {
  if (!json.has(key)) return {};
  const JsonObject value = json.object(key);
  if (value.string("type") == "Sequence") return value.objects(list);
  return {value};
}

class TokenizerWriter {
 public:
  TokenizerWriter(const fs::path& directory, const ModelConfig& config, GgufWriter& out)
      : directory_(directory),
        config_(config),
        out_(out),
        tokenizer_(Tokenizer::load(directory)),
        file_((directory / "tokenizer.json").string()) {}

  void write() && {
    std::error_code ignored;
    if (!fs::exists(file_, ignored)) {
      fail_unsupported(directory_.string(),
                       "has no tokenizer.json, from which GGUF files take their tokenizer");
    }
    const Json document = parse_json(read_file(file_), file_);
    const JsonObject json(document, file_);
    const JsonObject model = json.object("model");
    read_merges(model);
    read_added(json);
    if (model.boolean("byte_fallback", false)) {
      of_characters(json, model);
    } else {
      of_bytes(json, model);
    }
    write_ids();
    write_config_values();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail_unsupported(file_,
                     "llama.cpp has no tokenizer with {}, so it cannot be written to a GGUF "
                     "file",
                     what);
  }

  void read_merges(const JsonObject& model) {
    for (const Json& merge : model.array("merges")) {
      if (merge.is_array()) {
        merges_.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
        continue;
      }
      const auto text = merge.get<std::string>();
      const auto space = text.find(' ');
      merges_.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
  }

  void read_added(const JsonObject& json) {
    if (!json.has("added_tokens")) return;
    for (const JsonObject& token : json.objects("added_tokens")) {
      added_[token.integer("id", 0, INT32_MAX)] = token.boolean("special", false);
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        if (token.boolean(flag, false)) {
          note(fmt::format("{}: {} of added tokens is not known to llama.cpp", file_, flag));
        }
      }
    }
  }

  std::int32_t type_of(std::int64_t id, const std::string& content) const {
    if (unknown_ == id) return gguf_keys::kUnknownToken;
    const auto added = added_.find(id);
    if (added != added_.end()) {
      return added->second ? gguf_keys::kControlToken : gguf_keys::kUserDefinedToken;
    }
    const bool byte = of_characters_ && content.size() == 6 && content.starts_with("<0x") &&
                      content.ends_with('>');
    return byte ? gguf_keys::kByteToken : gguf_keys::kNormalToken;
  }

  // One for each row of the embedding.
  void write_tokens() {
    if (tokenizer_.vocab_size() > config_.vocab_size) {
      fail_file(file_, "has ids up to {}, but the embedding has {} rows",
                tokenizer_.vocab_size() - 1, config_.vocab_size);
    }
    std::vector<std::int32_t> types;
    for (std::int64_t id = 0; id < config_.vocab_size; ++id) {
      const auto content = tokenizer_.id_to_token(static_cast<std::int32_t>(id));
      tokens_.push_back(
          content.value_or(gguf_keys::placeholder_token(static_cast<std::size_t>(id))));
      types.push_back(content ? type_of(id, *content) : gguf_keys::kUnusedToken);
    }
    out_.put(gguf_keys::kTokens, tokens_);
    out_.put(gguf_keys::kTypes, types);
  }

  void of_bytes(const JsonObject& json, const JsonObject& model) {
    bool nfc = false;
    for (const JsonObject& step : steps_of(json, "normalizer", "normalizers")) {
      if (step.string("type") != "NFC") refuse("the normalizer " + in_quotes(step.string("type")));
      nfc = true;
    }
    const auto steps = pre_tokenizer_steps(
        json.has("pre_tokenizer") ? json.object("pre_tokenizer").json() : Json(nullptr));
    const bool ignores = model.boolean("ignore_merges", false);
    const auto& all = named_pre_tokenizers();
    const auto found = std::ranges::find_if(all, [&](const NamedPreTokenizer& one) {
      return !steps.empty() && one.steps == steps && one.nfc == nfc && one.ignore_merges == ignores;
    });
    if (found == all.end()) {
      refuse(ignores ? "these words (pre_tokenizer, normalizer) and ignore_merges"
                     : "these words (pre_tokenizer, normalizer)");
    }
    out_.put(gguf_keys::kModel, gguf_keys::kOfBytes);
    out_.put(gguf_keys::kPre, found->name);
    write_tokens();
    std::vector<std::string> merges;
    for (const auto& [left, right] : merges_) merges.push_back(fmt::format("{} {}", left, right));
    out_.put(gguf_keys::kMerges, merges);
  }

  // Whether a space is put in front of a text. Nothing else may happen to it.
  bool adds_space(const JsonObject& json) const {
    bool adds = false;
    for (const JsonObject& step : steps_of(json, "normalizer", "normalizers")) {
      const std::string type = step.string("type");
      const bool prepends = type == "Prepend" && step.string("prepend") == gguf_keys::kSpaceMark;
      const bool replaces = type == "Replace" && step.string("content") == gguf_keys::kSpaceMark &&
                            step.object("pattern").string("String", "") == " ";
      if (!prepends && !replaces) refuse("the normalizer " + in_quotes(type));
      adds = adds || prepends;
    }
    for (const JsonObject& step : steps_of(json, "pre_tokenizer", "pretokenizers")) {
      if (step.string("type") != "Metaspace" || step.boolean("split", true)) {
        refuse("the pre-tokenizer " + in_quotes(step.string("type")));
      }
      const std::string scheme = step.string("prepend_scheme", "always");
      adds = adds || scheme != "never";
      if (scheme == "first") {
        note(fmt::format("{}: llama.cpp also puts a space behind special tokens", file_));
      }
    }
    return adds;
  }

  // llama.cpp merges what gives the piece with the best score, whichever parts it is of. So a piece
  // needs all its parts among the merges, side by side.
  std::map<std::string, float> scores_of_merges() const {
    std::map<std::string, float> out;
    std::string before;
    for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
      const std::string whole = merges_[rank].first + merges_[rank].second;
      const bool fresh = out.emplace(whole, -static_cast<float>(rank)).second;
      if (!fresh && whole != before) refuse("merges in this order");
      before = whole;
    }
    const std::set<Pair> known(merges_.begin(), merges_.end());
    for (const std::string& whole : tokens_) {
      for (std::size_t at = 1; is_piece(whole) && at < whole.size(); ++at) {
        const Pair parts{whole.substr(0, at), whole.substr(at)};
        if (is_piece(parts.first) && is_piece(parts.second) && !known.contains(parts)) {
          refuse(fmt::format("{} but without the merge of {} and {}", in_quotes(whole),
                             in_quotes(parts.first), in_quotes(parts.second)));
        }
      }
    }
    return out;
  }

  bool is_piece(const std::string& text) const {
    const auto id = tokenizer_.token_to_id(text);
    return id && type_of(*id, text) == gguf_keys::kNormalToken;
  }

  void of_characters(const JsonObject& json, const JsonObject& model) {
    of_characters_ = true;
    const auto unknown = tokenizer_.token_to_id(model.string("unk_token", ""));
    if (!unknown) refuse("byte_fallback and no unk_token");
    unknown_ = *unknown;
    const bool space = adds_space(json);
    out_.put(gguf_keys::kModel, gguf_keys::kOfCharacters);
    out_.put(gguf_keys::kPre, "default");
    write_tokens();
    const auto ranked = scores_of_merges();
    std::vector<float> scores;
    for (const std::string& token : tokens_) {
      const auto found = ranked.find(token);
      // What no merge gives is never looked up; it comes behind.
      scores.push_back(found != ranked.end() ? found->second : -static_cast<float>(merges_.size()));
    }
    out_.put(gguf_keys::kScores, scores);
    out_.put(gguf_keys::kAddSpace, space);
  }

  bool is_known_end(std::int32_t id) const {
    const auto& known = gguf_keys::kEndsByName;
    return static_cast<std::size_t>(id) < tokens_.size() &&
           std::ranges::find(known, tokens_[static_cast<std::size_t>(id)]) != std::end(known);
  }

  // What is put around a text: its ids without and with it.
  void write_ids() {
    const auto alone = tokenizer_.encode("a", false), whole = tokenizer_.encode("a", true);
    const auto at =
        std::search(whole.begin(), whole.end(), alone.begin(), alone.end()) - whole.begin();
    const std::vector<std::int32_t> prefix(whole.begin(), whole.begin() + at);
    const std::vector<std::int32_t> suffix(
        whole.begin() + std::min(at + std::ssize(alone), std::ssize(whole)), whole.end());
    auto begin = config_.bos_token_id;
    if (prefix.size() == 1) begin = prefix[0];
    std::vector<std::int32_t> ends = config_.eos_token_ids;
    if (const auto own = tokenizer_.eos_id(); ends.empty() && own) ends.push_back(*own);
    if (prefix.size() > 1 || suffix.size() > 1 ||
        (!suffix.empty() && suffix != std::vector{ends.empty() ? -1 : ends[0]})) {
      refuse("more around a text than its begin and its end (post_processor)");
    }
    // The first is the document's. Of more than there are keys, those go first that need one.
    if (ends.size() > std::size(gguf_keys::kEnds)) {
      std::stable_partition(ends.begin() + 1, ends.end(),
                            [&](std::int32_t id) { return !is_known_end(id); });
    }
    if (begin) out_.put(gguf_keys::kBegin, static_cast<std::uint32_t>(*begin));
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (i < std::size(gguf_keys::kEnds)) {
        out_.put(gguf_keys::kEnds[i], static_cast<std::uint32_t>(ends[i]));
      } else if (!is_known_end(ends[i])) {
        note(fmt::format("{}: a GGUF file names {} ids that end a text; {} is left out", file_,
                         std::size(gguf_keys::kEnds), ends[i]));
      }
    }
    if (unknown_ >= 0) out_.put(gguf_keys::kUnknown, static_cast<std::uint32_t>(unknown_));
    out_.put(gguf_keys::kAddBegin, !prefix.empty());
    out_.put(gguf_keys::kAddEnd, !suffix.empty());
  }

  // A text, or of several the one that is called so.
  std::string chat_template(const JsonObject& config) const {
    const char* key = "chat_template";
    std::error_code ignored;
    const fs::path separate = directory_ / "chat_template.jinja";
    if (fs::exists(separate, ignored)) return read_file(separate);
    if (!config.has(key)) return "";
    if (!config.value(key).is_array()) return config.string(key);
    for (const JsonObject& one : config.objects(key)) {
      if (one.string("name") == "default") return one.string("template");
    }
    return "";
  }

  // Tokens that the tokenizer itself does not know as such, and the chat template.
  void write_config_values() {
    std::error_code ignored;
    const fs::path path = directory_ / "tokenizer_config.json";
    const std::string name = path.string();
    const Json document =
        fs::exists(path, ignored) ? parse_python_json(read_file(path), name) : Json::object();
    const JsonObject config(document, name);
    const auto put_id = [&](const char* key, const char* as) {
      if (!config.has(key)) return;
      const bool is_object = config.value(key).is_object();
      const auto id = tokenizer_.token_to_id(is_object ? config.object(key).string("content")
                                                       : config.string(key));
      if (id) out_.put(as, static_cast<std::uint32_t>(*id));
    };
    put_id("pad_token", gguf_keys::kPadding);
    if (!of_characters_) put_id("unk_token", gguf_keys::kUnknown);
    const std::string chat = chat_template(config);
    if (!chat.empty()) out_.put(gguf_keys::kChatTemplate, chat);
  }

  const fs::path& directory_;
  const ModelConfig& config_;
  GgufWriter& out_;
  Tokenizer tokenizer_;
  std::string file_;
  std::vector<Pair> merges_;
  std::map<std::int64_t, bool> added_;  // id -> whether it is special
  std::vector<std::string> tokens_;
  bool of_characters_ = false;
  std::int64_t unknown_ = -1;
};

}  // namespace

void write_tokenizer(const fs::path& directory, const ModelConfig& config, GgufWriter& out) {
  TokenizerWriter(directory, config, out).write();
}

}  // namespace twell::io
