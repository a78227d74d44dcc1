// Text to token ids and back. Two sources, one class:
//  * tokenizer.json (BPE of bytes: GPT-2, SmolLM2, Llama 3, Qwen2; of characters: Llama 2, Mistral,
//    MiniCPM), identical to the package `tokenizers` for characters that both know: its Unicode
//    version is 16 (9 for NFC and NFKC), ours that of utf8proc, and of PCRE2 for patterns;
//  * GPT-2's vocab.json and merges.txt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twell::io {

// Immutable and cheap to copy (shared). encode() and decode() may be called from several threads.
class Tokenizer {
 public:
  // A model directory: tokenizer.json, else vocab.json with merges.txt.
  // tokenizer_config.json, where present, says which tokens begin and end a text; where it lists no
  // added tokens, special_tokens_map.json does. A path to one of these files is accepted too
  // (merges.txt is then looked for beside vocab.json). Throws Error (unsupported) for a vocab.json
  // that is not GPT-2's, and for tokenizer.model, SentencePiece's own file.
  static Tokenizer load(const std::filesystem::path& path);
  // The texts of tokenizer.json and, if there is one, tokenizer_config.json; `file` is for
  // messages.
  static Tokenizer from_json(std::string_view json, const std::string& file,
                             const std::string& config = {});

  // `add_special_tokens`: what the post-processor puts around a text (begin of text). As in
  // transformers, add_bos_token of tokenizer_config.json says nothing beside it. Bytes that are no
  // UTF-8 throw Error (invalid_argument).
  // What the vocabulary has no symbol for is dropped, as `tokenizers` does, if it has no token for
  // what is unknown.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens = true) const;

  // Bytes that form no UTF-8 become U+FFFD, as in `tokenizers`. Unknown ids give nothing.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special_tokens = false) const;
  // What `ids` add to the text of `before`: the first word of a text alone may lose its space.
  std::string decode_behind(std::span<const std::int32_t> before, std::span<const std::int32_t> ids,
                            bool skip_special_tokens = false) const;

  // One past the largest id.
  std::int32_t vocab_size() const;
  // By content as in the file ("<|endoftext|>", "Ġthe").
  std::optional<std::int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  // From tokenizer_config.json, else the first special token with a customary name, else none.
  std::optional<std::int32_t> bos_id() const;
  std::optional<std::int32_t> eos_id() const;

  // Of the files it was read from: ties token shards to their tokenizer. Never 0.
  std::uint64_t hash() const;

  // Writes the files it was read from into a model directory (tokenizer.json, or vocab.json and
  // merges.txt; and tokenizer_config.json where there was one).
  void save(const std::filesystem::path& directory) const;

  class Impl;

 private:
  friend class StreamDecoder;
  explicit Tokenizer(const std::shared_ptr<Impl>& impl);
  std::shared_ptr<const Impl> impl_;
};

// Decodes token by token for printing while generating: what push() returns is always whole
// characters, and all pieces together equal decode() of all ids. What continues a prompt is pushed
// behind the prompt's ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, bool skip_special_tokens = false);
  ~StreamDecoder();
  StreamDecoder(const StreamDecoder&) = delete;
  StreamDecoder& operator=(const StreamDecoder&) = delete;
  // The text that is certain after this token; empty while a character is incomplete, or a run of
  // tokens for single bytes (<0x0A>) goes on.
  std::string push(std::int32_t id);
  // What is left, with U+FFFD for an incomplete character.
  std::string finish();

 private:
  class Run;
  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<Run> run_;
};

}  // namespace twell::io
