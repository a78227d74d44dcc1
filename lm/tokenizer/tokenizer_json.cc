// tokenizer.json, and GPT-2's pair of files.
#include <algorithm>

#include "files/file_error.h"
#include "files/json_reader.h"
#include "tokenizer/bpe_tokenizer.h"
#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

using Parts = BpeTokenizer::Parts;

void read_vocab(const JsonObject& vocab, Parts& out) {
  out.vocab.reserve(vocab.json().size());
  for (const auto& [content, id] : vocab.json().get_ref<const Json::object_t&>()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX) {
      fail_file(vocab.file(), "the id of token {} is no whole number from 0 to {}",
                in_quotes(content), INT32_MAX);
    }
    out.vocab.emplace_back(content, id.get<std::int32_t>());
  }
}

// "a b"
std::pair<std::string, std::string> split_merge(std::string_view line, std::size_t rank,
                                                const std::string& file) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    fail_file(file, "merge {} is {}, expected two tokens with a space between", rank,
              in_quotes(line));
  }
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

void read_merges(const JsonObject& model, Parts& out) {
  for (const Json& merge : model.array("merges")) {
    const std::size_t rank = out.merges.size();
    if (merge.is_string()) {
      out.merges.push_back(split_merge(merge.get_ref<const std::string&>(), rank, model.file()));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      out.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      fail_file(model.file(), "merge {} is {}, expected two tokens", rank, kind_of(merge));
    }
  }
}

void read_model(const JsonObject& model, Parts& out) {
  const std::string type = model.string("type", "BPE");
  if (type != "BPE") {
    fail_unsupported(model.file(),
                     "model {} is not supported (supported: BPE); run this model from Python, "
                     "where transformers reads its tokenizer",
                     in_quotes(type));
  }
  if (model.number("dropout", 0.0, 1.0, 0.0) != 0.0) {
    fail_unsupported(model.file(), "BPE with dropout is not supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.string(key, "").empty()) {
      fail_unsupported(model.file(), "{} is not supported", model.path_of(key));
    }
  }
  out.ignore_merges = model.boolean("ignore_merges", false);
  out.byte_fallback = model.boolean("byte_fallback", false);
  out.fuse_unknown = model.boolean("fuse_unk", false);
  out.unknown = model.string("unk_token", "");
  read_vocab(model.object("vocab"), out);
  read_merges(model, out);
}

void read_added(const JsonObject& json, Parts& out) {
  if (!json.has("added_tokens")) return;
  for (const JsonObject& token : json.objects("added_tokens")) {
    AddedToken added;
    added.id = static_cast<std::int32_t>(token.integer("id", 0, INT32_MAX));
    added.content = token.string("content");
    added.special = token.boolean("special", false);
    added.single_word = token.boolean("single_word", false);
    added.lstrip = token.boolean("lstrip", false);
    added.rstrip = token.boolean("rstrip", false);
    added.normalized = token.boolean("normalized", !added.special);
    out.added.push_back(std::move(added));
  }
}

void read_words(const JsonObject& json, Parts& out) {
  if (json.has("normalizer")) out.normalizer = Normalizer(json.object("normalizer"));
  if (json.has("pre_tokenizer")) {
    out.pre_tokenizers = read_pre_tokenizers(json.object("pre_tokenizer"));
  }
  if (out.byte_fallback && out.pre_tokenizers.byte_level) {
    fail_unsupported(json.file(), "byte_fallback with pre-tokenizer ByteLevel is not supported");
  }
  if (out.pre_tokenizers.elsewhere != nullptr && !out.normalizer.empty()) {
    // What the normalizer makes of the first character would all be the begin of the text.
    fail_unsupported(json.file(), "prepend_scheme \"first\" with a normalizer is not supported");
  }
}

void read_template(const JsonObject& json, Parts& out) {
  const JsonObject special = json.object("special_tokens");
  bool behind_text = false;
  for (const JsonObject& element : json.objects("single")) {
    if (element.has("Sequence")) {
      if (behind_text || element.object("Sequence").string("id") != "A") {
        fail_unsupported(json.file(), "{} with other than one text is not supported",
                         json.path_of("single"));
      }
      behind_text = true;
      continue;
    }
    const std::string name = element.object("SpecialToken").string("id");
    const JsonObject token = special.object(name.c_str());
    for (const Json& id : token.array("ids")) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX) {
        fail_file(json.file(), "{} holds {}, expected token ids", token.path_of("ids"),
                  kind_of(id));
      }
      (behind_text ? out.suffix : out.prefix).push_back(id.get<std::int32_t>());
    }
  }
  if (!behind_text) fail_file(json.file(), "{} has no place for the text", json.path_of("single"));
}

// ["</s>", 2]
std::int32_t read_pair_id(const JsonObject& json, const char* key) {
  const auto& pair = json.array(key);
  if (pair.size() != 2 || !pair[1].is_number_unsigned() ||
      pair[1].get<std::uint64_t>() > INT32_MAX) {
    fail_file(json.file(), "{} is no token with its id", json.path_of(key));
  }
  return pair[1].get<std::int32_t>();
}

void read_post_processor(const JsonObject& json, Parts& out) {
  const std::string type = json.string("type");
  if (type == "ByteLevel") return;  // offsets only
  if (type == "TemplateProcessing") return read_template(json, out);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    out.prefix.push_back(read_pair_id(json, "cls"));
    out.suffix.push_back(read_pair_id(json, "sep"));
    return;
  }
  if (type != "Sequence") {
    fail_unsupported(json.file(),
                     "post-processor {} is not supported (supported: ByteLevel, "
                     "TemplateProcessing, RobertaProcessing, Sequence)",
                     in_quotes(type));
  }
  for (const JsonObject& step : json.objects("processors")) {
    // The outer one goes around the inner one.
    Parts around;
    read_post_processor(step, around);
    out.prefix.insert(out.prefix.begin(), around.prefix.begin(), around.prefix.end());
    out.suffix.insert(out.suffix.end(), around.suffix.begin(), around.suffix.end());
  }
}

}  // namespace

std::shared_ptr<Tokenizer::Impl> read_tokenizer_json(std::string_view text,
                                                     const std::string& file) {
  const Json document = parse_json(text, file);
  const JsonObject json(document, file);
  Parts parts;
  read_model(json.object("model"), parts);
  read_added(json, parts);
  read_words(json, parts);
  if (!json.has("decoder")) {
    fail_unsupported(file, "a tokenizer without a decoder is not supported");
  }
  parts.decoder = TokenDecoder(json.object("decoder"));
  if (json.has("post_processor")) read_post_processor(json.object("post_processor"), parts);
  auto out = std::make_shared<BpeTokenizer>(std::move(parts), file);
  out->files.emplace_back("tokenizer.json", std::string(text));
  return out;
}

std::shared_ptr<Tokenizer::Impl> read_gpt2_tokenizer(std::string_view vocab_json,
                                                     std::string_view merges,
                                                     const std::string& file) {
  const Json document = parse_json(vocab_json, file);
  Parts parts;
  read_vocab(JsonObject(document, file), parts);
  if (find_invalid_utf8(merges) != std::string_view::npos) {
    fail_file(file, "its merges.txt is not UTF-8");
  }
  for (std::size_t at = 0; at < merges.size();) {
    const std::size_t end = std::min(merges.find('\n', at), merges.size());
    std::string_view line = merges.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    parts.merges.push_back(split_merge(line, parts.merges.size(), file));
  }
  // The one special token of GPT-2, which its files do not mark.
  for (const auto& [content, id] : parts.vocab) {
    if (content == "<|endoftext|>") {
      AddedToken token;
      token.id = id;
      token.content = content;
      token.special = true;
      parts.added.push_back(token);
    }
  }
  parts.pre_tokenizers.begin = gpt2_pre_tokenizer();
  parts.pre_tokenizers.byte_level = true;
  auto out = std::make_shared<BpeTokenizer>(std::move(parts), file);
  out->files.emplace_back("vocab.json", std::string(vocab_json));
  out->files.emplace_back("merges.txt", std::string(merges));
  return out;
}

}  // namespace twell::io
