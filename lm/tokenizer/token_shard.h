// Token ids in a file, for training without tokenizing again.
//
// All little-endian. 64 bytes of header, then the ids:
//   0  char[8] "TWELLTOK"
//   8  u32     version, 1
//  12  u32     bytes per id: 2 (vocabulary <= 65,536) or 4
//  16  u64     number of ids; the file is exactly 64 + ids * bytes long
//  24  u64     Tokenizer::hash() of the tokenizer
//  32  u32     size of the vocabulary; every id is below it
//  36  zeros
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/atomic_file.h"
#include "files/mapped_file.h"

namespace twell::io {

inline constexpr std::string_view kTokenShardMagic = "TWELLTOK";

struct TokenShardHeader {
  std::uint32_t bytes_per_id = 2;
  std::uint64_t count = 0;
  std::uint64_t tokenizer_hash = 0;
  std::uint32_t vocab_size = 0;
};

// Checks every field against the file's length. Throws Error (environment).
TokenShardHeader parse_token_shard(std::span<const std::byte> file, const std::string& name);

class TokenShard {
 public:
  explicit TokenShard(const std::filesystem::path& path);

  std::uint64_t size() const { return header_.count; }  // ids
  std::uint32_t vocab_size() const { return header_.vocab_size; }
  std::uint64_t tokenizer_hash() const { return header_.tokenizer_hash; }
  const std::filesystem::path& path() const { return file_.path(); }

  // Copies ids [first, first + out.size()). Throws Error: invalid_argument beyond the end,
  // environment where an id is not below vocab_size().
  void read(std::uint64_t first, std::span<std::int64_t> out) const;
  void read(std::uint64_t first, std::span<std::int32_t> out) const;
  // Throws Error (invalid_argument) naming both where the hash is another.
  void expect_tokenizer(std::uint64_t hash) const;

 private:
  template <class T>
  void read_into(std::uint64_t first, std::span<T> out) const;

  MappedFile file_;
  TokenShardHeader header_;
};

class TokenShardWriter {
 public:
  TokenShardWriter(const std::filesystem::path& path, std::uint32_t vocab_size,
                   std::uint64_t tokenizer_hash);
  // Throws Error (invalid_argument) on an id outside [0, vocab_size).
  void append(std::span<const std::int32_t> ids);
  std::uint64_t size() const { return header_.count; }
  void commit();

 private:
  void flush();

  AtomicFile file_;
  TokenShardHeader header_;
  std::vector<std::byte> buffer_;
};

}  // namespace twell::io
