#include "tokenizer/token_shard.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "files/file_error.h"

namespace twell::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the ids are mapped as they are");

constexpr std::size_t kHeaderBytes = 64;
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kMaxNarrowVocabulary = 1 << 16;
constexpr std::size_t kBufferBytes = 1 << 20;

// The layout of the file, see the header.
struct RawHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t bytes_per_id;
  std::uint64_t count;
  std::uint64_t tokenizer_hash;
  std::uint32_t vocab_size;
  std::uint8_t zeros[28];
};
static_assert(sizeof(RawHeader) == kHeaderBytes);

}  // namespace

TokenShardHeader parse_token_shard(std::span<const std::byte> file, const std::string& name) {
  if (file.size() < kHeaderBytes) {
    fail_file(name, "has {} bytes, too few for a token shard: truncated?", file.size());
  }
  RawHeader raw;
  std::memcpy(&raw, file.data(), sizeof raw);
  if (std::memcmp(raw.magic, kTokenShardMagic.data(), sizeof raw.magic) != 0) {
    fail_file(name, "is not a token shard (make one with `twell tokenize`)");
  }
  if (raw.version != kVersion) {
    fail_file(name, "is a token shard of version {}, expected {}", raw.version, kVersion);
  }
  if (raw.bytes_per_id != 2 && raw.bytes_per_id != 4) {
    fail_file(name, "claims {} bytes per id, expected 2 or 4", raw.bytes_per_id);
  }
  const std::uint64_t ids = (file.size() - kHeaderBytes) / raw.bytes_per_id;
  if ((file.size() - kHeaderBytes) % raw.bytes_per_id != 0 || raw.count != ids) {
    fail_file(name, "claims {} ids of {} bytes, but has {} bytes of them: truncated?", raw.count,
              raw.bytes_per_id, file.size() - kHeaderBytes);
  }
  if (raw.vocab_size == 0 || raw.vocab_size > static_cast<std::uint32_t>(INT32_MAX) ||
      (raw.bytes_per_id == 2 && raw.vocab_size > kMaxNarrowVocabulary)) {
    fail_file(name, "claims a vocabulary of {} with {} bytes per id", raw.vocab_size,
              raw.bytes_per_id);
  }
  if (std::any_of(std::begin(raw.zeros), std::end(raw.zeros), [](auto b) { return b != 0; })) {
    fail_file(name, "has bytes other than zero in the reserved part of its header");
  }
  return {raw.bytes_per_id, raw.count, raw.tokenizer_hash, raw.vocab_size};
}

TokenShard::TokenShard(const std::filesystem::path& path)
    : file_(path), header_(parse_token_shard(file_.bytes(), path.string())) {}

template <class T>
void TokenShard::read_into(std::uint64_t first, std::span<T> out) const {
  if (first > header_.count || out.size() > header_.count - first) {
    fail_argument("TokenShard::read", "{} has {} ids, asked for {} from {}", path().string(),
                  header_.count, out.size(), first);
  }
  const std::byte* from = file_.data() + kHeaderBytes + first * header_.bytes_per_id;
  std::uint32_t largest = 0;
  for (T& id : out) {
    std::uint32_t value = 0;
    std::memcpy(&value, from, header_.bytes_per_id);
    from += header_.bytes_per_id;
    largest = std::max(largest, value);
    id = static_cast<T>(value);
  }
  if (largest >= header_.vocab_size && !out.empty()) {
    fail_file(path().string(), "holds the id {}, but its vocabulary has {}: damaged?", largest,
              header_.vocab_size);
  }
}

void TokenShard::read(std::uint64_t first, std::span<std::int64_t> out) const {
  read_into(first, out);
}
void TokenShard::read(std::uint64_t first, std::span<std::int32_t> out) const {
  read_into(first, out);
}

void TokenShard::expect_tokenizer(std::uint64_t hash) const {
  if (hash != header_.tokenizer_hash) {
    fail_argument(path().string(),
                  "was made with another tokenizer (hash {:016x}, the model's is {:016x}); "
                  "tokenize the text again",
                  header_.tokenizer_hash, hash);
  }
}

TokenShardWriter::TokenShardWriter(const std::filesystem::path& path, std::uint32_t vocab_size,
                                   std::uint64_t tokenizer_hash)
    : file_(path) {
  if (vocab_size == 0 || vocab_size > static_cast<std::uint32_t>(INT32_MAX)) {
    fail_argument("TokenShardWriter", "impossible vocabulary size {}", vocab_size);
  }
  header_ = {vocab_size <= kMaxNarrowVocabulary ? 2U : 4U, 0, tokenizer_hash, vocab_size};
  file_.write(std::string(kHeaderBytes, '\0'));  // room for the header, which is written last
}

void TokenShardWriter::append(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::uint32_t>(id) >= header_.vocab_size) {
      fail_argument("TokenShardWriter::append", "{}: id {} is not below the vocabulary size {}",
                    file_.path().string(), id, header_.vocab_size);
    }
    const auto* bytes = reinterpret_cast<const std::byte*>(&id);
    buffer_.insert(buffer_.end(), bytes, bytes + header_.bytes_per_id);
    ++header_.count;
    if (buffer_.size() >= kBufferBytes) flush();
  }
}

void TokenShardWriter::flush() {
  file_.write(buffer_);
  buffer_.clear();
}

void TokenShardWriter::commit() {
  flush();
  RawHeader raw{};
  std::memcpy(raw.magic, kTokenShardMagic.data(), sizeof raw.magic);
  raw.version = kVersion;
  raw.bytes_per_id = header_.bytes_per_id;
  raw.count = header_.count;
  raw.tokenizer_hash = header_.tokenizer_hash;
  raw.vocab_size = header_.vocab_size;
  file_.write_at(0, std::as_bytes(std::span(&raw, 1)));
  file_.commit();
}

}  // namespace twell::io
