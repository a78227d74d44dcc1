#include "tokenizer/tokenizer_impl.h"

#include <algorithm>

#include "files/file_error.h"

namespace twell::io {
namespace {

// The first of these that is a token begins or ends a text where tokenizer_config.json does not
// say. GPT-2 and SmolLM2 use one token for both.
constexpr const char* kBosNames[] = {"<|begin_of_text|>", "<s>", "<bos>", "<|endoftext|>"};
constexpr const char* kEosNames[] = {"<|end_of_text|>", "</s>", "<eos>", "<|endoftext|>",
                                     "<|im_end|>"};

std::uint64_t fnv1a(std::uint64_t hash, std::string_view bytes) {
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace

const Tokenizer::Impl::Token* Tokenizer::Impl::find(std::int32_t id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= tokens.size()) return nullptr;
  const Token& token = tokens[static_cast<std::size_t>(id)];
  return token.present ? &token : nullptr;
}

void Tokenizer::Impl::decode(std::int32_t id, bool skip_special_tokens, TokenDecoder::Run& run,
                             std::string& out) const {
  const Token* token = find(id);
  if (token == nullptr || (skip_special_tokens && token->special)) return;
  run.push(token->piece, out);
}

void Tokenizer::Impl::add(std::int32_t id, std::string content, std::string_view found_as,
                          std::size_t count, const std::string& file) {
  const std::size_t limit = 2 * count + 4096;  // room for gaps, but not for any number
  const auto index = static_cast<std::size_t>(id);
  if (id < 0 || index >= limit) {
    fail_file(file, "token {} has the id {}, but there are {} tokens", in_quotes(content), id,
              count);
  }
  if (index >= tokens.size()) tokens.resize(index + 1);
  Token& token = tokens[index];
  if (token.present) {
    fail_file(file, "the id {} belongs to both {} and {}", id, in_quotes(token.content),
              in_quotes(content));
  }
  ids.emplace(content, id);
  std::string piece = decoder.input(found_as);
  token = {std::move(content), std::move(piece), true, false};
}

void Tokenizer::Impl::finish() {
  hash = 0xCBF29CE484222325ULL;
  for (const auto& [name, contents] : files) {
    if (name != "tokenizer_config.json") hash = fnv1a(hash, contents);
  }
  hash = std::max<std::uint64_t>(hash, 1);
  const auto first_of = [&](const auto& names) -> std::optional<std::int32_t> {
    for (const char* name : names) {
      if (const auto found = ids.find(name); found != ids.end()) return found->second;
    }
    return std::nullopt;
  };
  if (!bos) bos = first_of(kBosNames);
  if (!eos) eos = first_of(kEosNames);
}

}  // namespace twell::io
