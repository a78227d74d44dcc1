#include "tokenizer/tokenizer.h"

#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/json_reader.h"
#include "files/note.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
constexpr const char* kConfigName = "tokenizer_config.json";

// "eos_token": "</s>" or {"content": "</s>", ...}
std::optional<std::int32_t> named_token(const JsonObject& config, const char* key,
                                        const Tokenizer::Impl& impl) {
  if (!config.has(key)) return std::nullopt;
  const bool is_object = config.value(key).is_object();
  const std::string content = is_object ? config.object(key).string("content") : config.string(key);
  const auto found = impl.ids.find(content);
  if (found == impl.ids.end()) {
    fail_file(config.file(), "{} is {}, which is not in the vocabulary", config.path_of(key),
              in_quotes(content));
  }
  return found->second;
}

// Where tokenizer_config.json lists no added tokens, transformers lets this older file say which
// tokens begin and end a text.
void read_special_tokens_map(const fs::path& path, Tokenizer::Impl& impl) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  const std::string file = path.string();
  const Json document = parse_python_json(read_file(path), file);
  const JsonObject map(document, file);
  if (const auto bos = named_token(map, "bos_token", impl)) impl.bos = bos;
  if (const auto eos = named_token(map, "eos_token", impl)) impl.eos = eos;
}

// transformers adds a token that this file alone lists, behind all others; a model seldom has a row
// for it.
void note_missing_tokens(const JsonObject& config, const Tokenizer::Impl& impl) {
  for (const auto& [id, token] : config.object("added_tokens_decoder").json().items()) {
    if (!token.is_object() || !token.contains("content") || !token["content"].is_string()) continue;
    const std::string content = token["content"];
    if (impl.ids.contains(content)) continue;
    note(fmt::format("{} lists the token {}, which the tokenizer has not: it is read as text",
                     config.file(), in_quotes(content)));
  }
}

// `map`: where special_tokens_map.json would be.
void read_tokenizer_config(std::string text, const std::string& file, const fs::path& map,
                           Tokenizer::Impl& impl) {
  const Json document = parse_python_json(text, file);
  const JsonObject config(document, file);
  impl.bos = named_token(config, "bos_token", impl);
  impl.eos = named_token(config, "eos_token", impl);
  if (config.has("added_tokens_decoder")) {
    note_missing_tokens(config, impl);
  } else {
    read_special_tokens_map(map, impl);
  }
  impl.files.emplace_back(kConfigName, std::move(text));
}

void read_tokenizer_config_of(const fs::path& directory, Tokenizer::Impl& impl) {
  const fs::path path = directory / kConfigName, map = directory / "special_tokens_map.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return read_special_tokens_map(map, impl);
  read_tokenizer_config(read_file(path), path.string(), map, impl);
}

constexpr const char* kRemedy =
    "load the tokenizer with transformers' AutoTokenizer and save it, which writes tokenizer.json";

// vocab.json and merges.txt say neither how a text is split into words nor which tokens were added:
// they are read as GPT-2's, and must not be another's.
void expect_gpt2(const fs::path& directory) {
  std::error_code ignored;
  if (fs::exists(directory / "added_tokens.json", ignored)) {
    fail_unsupported((directory / "added_tokens.json").string(),
                     "tokens beside vocab.json are not supported; {}", kRemedy);
  }
  const fs::path path = directory / kConfigName;
  if (!fs::exists(path, ignored)) return;
  const std::string file = path.string();
  const Json document = parse_python_json(read_file(path), file);
  const JsonObject config(document, file);
  const std::string name = config.string("tokenizer_class", "GPT2Tokenizer");
  if (name != "GPT2Tokenizer" && name != "GPT2TokenizerFast") {
    fail_unsupported(file, "vocab.json of a {} is not supported (supported: GPT2Tokenizer); {}",
                     in_quotes(name), kRemedy);
  }
  for (const char* key : {"add_bos_token", "add_eos_token"}) {  // OPT has the first
    if (config.boolean(key, false)) {
      fail_unsupported(file, "{} beside vocab.json is not supported; {}", key, kRemedy);
    }
  }
}

std::shared_ptr<Tokenizer::Impl> read_file_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (path.extension() == ".model") {
    fail_unsupported(path.string(), "a tokenizer of SentencePiece is not supported; {}", kRemedy);
  }
  const std::string text = read_file(path);
  std::shared_ptr<Tokenizer::Impl> out;
  if (name == "vocab.json") {
    expect_gpt2(path.parent_path());
    out = read_gpt2_tokenizer(text, read_file(path.parent_path() / "merges.txt"), path.string());
  } else {
    out = read_tokenizer_json(text, path.string());
  }
  read_tokenizer_config_of(path.parent_path(), *out);
  return out;
}

}  // namespace

Tokenizer::Tokenizer(const std::shared_ptr<Impl>& impl) : impl_(impl) { impl->finish(); }

Tokenizer Tokenizer::load(const fs::path& path) {
  std::error_code ignored;
  fs::path file = path;
  if (fs::is_directory(path, ignored)) {
    file.clear();
    for (const char* name : {"tokenizer.json", "vocab.json", "tokenizer.model"}) {
      if (file.empty() && fs::exists(path / name, ignored)) file = path / name;
    }
    if (file.empty()) fail_file(path.string(), "has neither tokenizer.json nor vocab.json");
  }
  return Tokenizer(read_file_of(file));
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& file,
                               const std::string& config) {
  const std::shared_ptr<Impl> impl = read_tokenizer_json(json, file);
  if (!config.empty()) read_tokenizer_config(config, file, {}, *impl);
  return Tokenizer(impl);
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (const std::size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    fail_argument("Tokenizer::encode", "the text is not UTF-8 at its byte {}", at);
  }
  std::vector<std::int32_t> out;
  impl_->encode(text, add_special_tokens, out);
  return out;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string out;
  TokenDecoder::Run run(impl_->decoder);
  for (const std::int32_t id : ids) impl_->decode(id, skip_special_tokens, run, out);
  run.finish(out);
  return out;
}

std::string Tokenizer::decode_behind(std::span<const std::int32_t> before,
                                     std::span<const std::int32_t> ids,
                                     bool skip_special_tokens) const {
  const std::string head = decode(before, skip_special_tokens);
  std::vector<std::int32_t> all(before.begin(), before.end());
  all.insert(all.end(), ids.begin(), ids.end());
  std::string whole = decode(all, skip_special_tokens);
  // Not where a character, or a run of bytes, lies in both.
  if (!whole.starts_with(head)) return decode(ids, skip_special_tokens);
  return whole.substr(head.size());
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(impl_->tokens.size());
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const auto found = impl_->ids.find(std::string(token));
  if (found == impl_->ids.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> Tokenizer::id_to_token(std::int32_t id) const {
  const auto* token = impl_->find(id);
  if (token == nullptr) return std::nullopt;
  return token->content;
}

bool Tokenizer::is_special(std::int32_t id) const {
  const auto* token = impl_->find(id);
  return token != nullptr && token->special;
}

std::optional<std::int32_t> Tokenizer::bos_id() const { return impl_->bos; }
std::optional<std::int32_t> Tokenizer::eos_id() const { return impl_->eos; }
std::uint64_t Tokenizer::hash() const { return impl_->hash; }

void Tokenizer::save(const fs::path& directory) const {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) fail_file(directory.string(), "cannot be made: {}", error.message());
  for (const auto& [name, contents] : impl_->files) {
    write_file_atomically(directory / name, contents);
  }
}

class StreamDecoder::Run : public TokenDecoder::Run {
 public:
  using TokenDecoder::Run::Run;
};

StreamDecoder::StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens)
    : tokenizer_(std::move(tokenizer)),
      skip_special_tokens_(skip_special_tokens),
      run_(std::make_unique<Run>(tokenizer_.impl_->decoder)) {}

StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(std::int32_t id) {
  std::string out;
  tokenizer_.impl_->decode(id, skip_special_tokens_, *run_, out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  run_->finish(out);
  return out;
}

}  // namespace twell::io
