// Text files to one stream of token ids, tokenized once and kept on disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "corpus/token_stream.h"
#include "tokenizer/tokenizer.h"

namespace twell::lm {

struct Corpus {
  TokenStream tokens;
  std::uint64_t hash = 0;  // of contents and tokenizer
};

// Bytes done and in total.
using CorpusProgress = std::function<void(std::uint64_t, std::uint64_t)>;

// Tokenizes UTF-8 texts into one token shard at `path`, atomically; returns its number of ids.
// Texts are documents: an end-of-text token follows each where the tokenizer has one. Throws Error
// naming the file: empty, no UTF-8, unreadable; and where the texts are not those of
// `expected_hash`, hash_bytes() of one after the other from the tokenizer's hash.
std::uint64_t write_shard(const std::filesystem::path& path,
                          const std::vector<std::filesystem::path>& files,
                          const io::Tokenizer& tokenizer, const CorpusProgress& progress = {},
                          std::optional<std::uint64_t> expected_hash = {});

// Each file is UTF-8 text or a token shard (told by its first bytes) of the same tokenizer. The
// texts' ids are written by write_shard() to `cache`/HASH.tokens, and read from there the next
// time; HASH covers contents and tokenizer. Throws Error naming the file: as write_shard(), or a
// shard of another tokenizer.
Corpus load_corpus(const std::vector<std::filesystem::path>& files, const io::Tokenizer& tokenizer,
                   const std::filesystem::path& cache, const CorpusProgress& progress = {});

// The first `max_bytes` of the texts, whole files until then (a longer one is cut at a line), for
// learning a tokenizer: evenly from all files. Throws Error where a file is a token shard.
std::vector<std::string> sample_texts(const std::vector<std::filesystem::path>& files,
                                      std::uint64_t max_bytes);

// 64 bits over bytes, continuing from `seed`. For telling contents apart, not for security.
std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed);

}  // namespace twell::lm
