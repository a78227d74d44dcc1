#include "corpus/corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "corpus/text_files.h"
#include "files/file_error.h"
#include "files/mapped_file.h"
#include "files/note.h"
#include "tokenizer/token_shard.h"
#include "tokenizer/unicode.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

std::string_view text_of(const io::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

io::MappedFile open_text(const fs::path& path) {
  io::MappedFile file(path);
  if (file.size() == 0) io::fail_file(path.string(), "is empty: there is nothing to train on");
  return file;
}

bool is_shard(const io::MappedFile& file) {
  return text_of(file).starts_with(io::kTokenShardMagic);
}

// The cached shard if it is whole and of this tokenizer, else none.
std::optional<io::TokenShard> open_cached(const fs::path& path, std::uint64_t tokenizer_hash) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::nullopt;
  try {
    io::TokenShard shard(path);
    if (shard.tokenizer_hash() == tokenizer_hash) return shard;
  } catch (const Error&) {
    // A damaged cache is made again.
  }
  return std::nullopt;
}

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes, std::uint64_t seed) {
  std::uint64_t hash = seed ^ (bytes.size() * 0x9e3779b97f4a7c15ULL);
  const auto mix = [&hash](std::uint64_t word) {
    hash = (hash ^ word) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 32U;
  };
  std::size_t i = 0;
  for (std::uint64_t word = 0; i + sizeof word <= bytes.size(); i += sizeof word) {
    std::memcpy(&word, bytes.data() + i, sizeof word);
    mix(word);
  }
  std::uint64_t rest = 0;
  if (i < bytes.size()) std::memcpy(&rest, bytes.data() + i, bytes.size() - i);
  mix(rest);
  mix(bytes.size());
  return hash;
}

std::uint64_t write_shard(const fs::path& path, const std::vector<fs::path>& files,
                          const io::Tokenizer& tokenizer, const CorpusProgress& progress,
                          std::optional<std::uint64_t> expected_hash) {
  std::uint64_t done = 0, total = 0, hash = tokenizer.hash();
  for (const fs::path& file : files) {
    std::error_code ignored;  // opening it will tell
    total += fs::file_size(file, ignored);
  }
  io::TokenShardWriter writer(path, static_cast<std::uint32_t>(tokenizer.vocab_size()),
                              tokenizer.hash());
  for (const fs::path& file : files) {
    const io::MappedFile text = open_text(file);
    hash = hash_bytes(text_of(text), hash);
    try {
      std::vector<std::int32_t> ids = tokenizer.encode(text_of(text), false);
      if (const auto eos = tokenizer.eos_id()) ids.push_back(*eos);
      writer.append(ids);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::environment) throw;
      throw Error(error.kind(), file.string(), error.what());
    }
    done += text.size();
    if (progress) progress(done, std::max(done, total));
  }
  if (expected_hash && hash != *expected_hash) {
    io::fail_file(path.string(),
                  "a text changed while it was read: leave the texts alone and retry");
  }
  const std::uint64_t tokens = writer.size();
  writer.commit();
  return tokens;
}

Corpus load_corpus(const std::vector<fs::path>& files, const io::Tokenizer& tokenizer,
                   const fs::path& cache, const CorpusProgress& progress) {
  std::vector<io::TokenShard> shards;
  std::vector<fs::path> texts;
  std::uint64_t hash = tokenizer.hash(), text_hash = hash;
  for (const fs::path& path : files) {
    const io::MappedFile file = open_text(path);
    hash = hash_bytes(text_of(file), hash);
    if (is_shard(file)) {
      shards.emplace_back(path);
      shards.back().expect_tokenizer(tokenizer.hash());
    } else {
      text_hash = hash_bytes(text_of(file), text_hash);
      texts.push_back(path);
    }
  }
  if (!shards.empty() && !texts.empty()) {
    io::note(
        fmt::format("{} and {} texts are trained on: what was made of these texts counts twice",
                    shards.front().path().string(), texts.size()));
  }
  if (!texts.empty()) {
    std::error_code error;
    fs::create_directories(cache, error);
    if (error) io::fail_file(cache.string(), "cannot make the directory: {}", error.message());
    const fs::path path = cache / cache_name(text_hash);
    auto shard = open_cached(path, tokenizer.hash());
    if (!shard) {
      write_shard(path, texts, tokenizer, progress, text_hash);
      shard.emplace(path);
    }
    shards.insert(shards.begin(), std::move(*shard));
  }
  return {TokenStream(std::move(shards)), hash};
}

std::vector<std::string> sample_texts(const std::vector<fs::path>& files, std::uint64_t max_bytes) {
  std::uint64_t total = 0;
  for (const fs::path& path : files) {
    const io::MappedFile file = open_text(path);
    if (is_shard(file)) {
      io::fail_file(path.string(),
                    "holds token ids: give the tokenizer that made them, one cannot be learnt");
    }
    if (const auto bad = io::find_invalid_utf8(text_of(file)); bad != std::string_view::npos) {
      io::fail_file(path.string(), "byte {} is no UTF-8: convert the text first", bad);
    }
    total += file.size();
  }
  std::vector<std::string> out;
  for (const fs::path& path : files) {
    const io::MappedFile file = open_text(path);
    std::string_view text = text_of(file);
    if (total > max_bytes) {
      const double share = static_cast<double>(max_bytes) / static_cast<double>(total);
      text = text.substr(0, static_cast<std::size_t>(share * static_cast<double>(text.size())));
      if (const auto line = text.rfind('\n'); line != std::string_view::npos) {
        text = text.substr(0, line + 1);
      }
      // One long line: not within a character (continuation bytes are 10xxxxxx).
      while (!text.empty() && (text.data()[text.size()] & 0xc0) == 0x80) text.remove_suffix(1);
    }
    if (!text.empty()) out.emplace_back(text);
  }
  return out;
}

}  // namespace twell::lm
