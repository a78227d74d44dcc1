#include "tokenizer/byte_level_tokenizer.h"

#include <algorithm>
#include <limits>

#include "files/file_error.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace twell::io {

ByteLevelTokenizer::ByteLevelTokenizer(Parts parts, const std::string& file)
    : merges_(parts.merges.size()),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      nfc_(parts.nfc),
      fuse_unknown_(parts.fuse_unknown),
      prefix_(std::move(parts.prefix)),
      suffix_(std::move(parts.suffix)) {
  add_vocab(parts, file);
  add_merges(parts, file);
  add_added(parts, file);
  for (const auto* around : {&prefix_, &suffix_}) {
    for (const std::int32_t id : *around) {
      if (find(id) == nullptr) {
        fail_file(file, "post_processor: the id {} is not in the vocabulary", id);
      }
    }
  }
}

void ByteLevelTokenizer::add_vocab(const Parts& parts, const std::string& file) {
  if (parts.vocab.empty()) fail_file(file, "the vocabulary is empty");
  for (const auto& [content, id] : parts.vocab) {
    const auto bytes = bytes_from_symbols(content);
    if (parts.ignore_merges && bytes) whole_words_.emplace(*bytes, id);
    add(id, content, bytes.value_or(content), parts.vocab.size() + parts.added.size(), file);
  }
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto found = ids.find(byte_symbols().at(byte));
    byte_ids_.at(byte) = found == ids.end() ? -1 : found->second;
  }
  if (!parts.unknown.empty()) {
    const auto found = ids.find(parts.unknown);
    if (found == ids.end()) {
      fail_file(file, "unk_token {} is not in the vocabulary", in_quotes(parts.unknown));
    }
    unknown_ = found->second;
  }
}

void ByteLevelTokenizer::add_merges(const Parts& parts, const std::string& file) {
  std::uint32_t rank = 0;
  for (const auto& merge : parts.merges) {
    const std::string& left = merge.first;
    const std::string& right = merge.second;
    const auto id_of = [&](const std::string& content) {
      const auto found = ids.find(content);
      if (found == ids.end()) {
        fail_file(file, "merge {} ({} {}): {} is not in the vocabulary", rank, in_quotes(left),
                  in_quotes(right), in_quotes(content));
      }
      return found->second;
    };
    merges_.add(id_of(left), id_of(right), {rank, id_of(left + right)});
    ++rank;
  }
}

void ByteLevelTokenizer::add_added(const Parts& parts, const std::string& file) {
  for (const AddedToken& token : parts.added) {
    if (token.content.empty()) continue;
    const auto found = ids.find(token.content);
    if (found == ids.end()) {
      add(token.id, token.content, bytes_from_symbols(token.content).value_or(token.content),
          parts.vocab.size() + parts.added.size(), file);
    } else if (found->second != token.id) {
      fail_file(file, "added token {} has the id {}, but {} in the vocabulary",
                in_quotes(token.content), token.id, found->second);
    }
    if (token.special) tokens[static_cast<std::size_t>(token.id)].special = true;
    if (token.normalized) {
      AddedToken normalized = token;
      if (nfc_) normalized.content = to_nfc(token.content);
      in_normalized_.add(normalized);
    } else {
      in_text_.add(token);
    }
  }
}

void ByteLevelTokenizer::encode(std::string_view text, bool add_special_tokens,
                                std::vector<std::int32_t>& out) const {
  if (add_special_tokens) out.insert(out.end(), prefix_.begin(), prefix_.end());
  const auto plain = [&](std::string_view part, std::int32_t id) {
    if (id >= 0) {
      out.push_back(id);
    } else {
      encode_plain(part, out);
    }
  };
  in_text_.split(text, [&](std::string_view part, std::int32_t id) {
    if (id >= 0) return plain({}, id);
    if (!nfc_) return in_normalized_.split(part, plain);
    in_normalized_.split(to_nfc(part), plain);
  });
  if (add_special_tokens) out.insert(out.end(), suffix_.begin(), suffix_.end());
}

void ByteLevelTokenizer::encode_plain(std::string_view text, std::vector<std::int32_t>& out) const {
  pre_tokenizer_->split(text, [&](std::string_view word) { encode_word(word, out); });
}

void ByteLevelTokenizer::encode_word(std::string_view word, std::vector<std::int32_t>& out) const {
  const bool cached = word.size() <= WordCache::kLongestWord;
  if (cached && cache_.find(word, out)) return;
  if (word.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail_argument("Tokenizer::encode", "one word has {} bytes, more than 2^31", word.size());
  }
  std::vector<std::int32_t> symbols;
  if (const auto whole =
          whole_words_.empty() ? whole_words_.end() : whole_words_.find(std::string(word));
      whole != whole_words_.end()) {
    symbols.push_back(whole->second);
  } else {
    symbols.reserve(word.size());
    bool after_unknown = false;
    for (const char c : word) {
      const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) {
        symbols.push_back(id);
      } else if (unknown_ >= 0 && !(fuse_unknown_ && after_unknown)) {
        symbols.push_back(unknown_);
      }
      after_unknown = id < 0;
    }
    merges_.merge(symbols);
  }
  if (cached) cache_.insert(word, symbols.data(), symbols.size());
  out.insert(out.end(), symbols.begin(), symbols.end());
}

}  // namespace twell::io
