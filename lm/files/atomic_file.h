// Files that are either wholly there or not there at all, whatever happens while writing them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "files/unfinished.h"

namespace twell::io {

// Writes to a temporary file beside `path` and renames it over `path` in commit(). Until then an
// older file of that name is untouched; a full disk, an exception or a killed process leave it as
// it was. The temporary file is `.NAME.RANDOM.twell-tmp`; one that a killed process left behind is
// removed by the next AtomicFile of the same name.
//
// Every failure of the system throws twell::Error (environment) with the path and the reason.
// A symbolic link is followed: its target is replaced, the link stays. The mode of an older file
// is kept. Not for use from several threads at once.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();  // without commit(): the temporary file is removed
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  AtomicFile(const AtomicFile&) = delete;

  // Appends behind everything written so far.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view bytes);
  // Writes at a byte offset; gaps read as zero.
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // One past the last byte written.
  std::uint64_t size() const { return size_; }

  // fsync, rename, fsync of the directory; a file system that cannot fsync goes without. Nothing
  // may be written afterwards.
  void commit();

  const std::filesystem::path& path() const { return path_; }

 private:
  void discard() noexcept;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::uint64_t size_ = 0;
  int descriptor_ = -1;
  std::unique_ptr<Unfinished> unfinished_;  // as long as there is a descriptor
};

// What was made, renamed or removed in a directory survives a power cut from here on, where its
// file system can promise that. Throws Error (environment) where the disk failed.
void sync_directory(const std::filesystem::path& path);

void write_file_atomically(const std::filesystem::path& path, std::string_view contents);

// The whole file. Throws where it is longer than `max_bytes` (before reading it), is no regular
// file, or cannot be read.
std::string read_file(const std::filesystem::path& path, std::uint64_t max_bytes = 256ULL << 20);

}  // namespace twell::io
