// A file in memory, read only, without reading it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace twell::io {

// The bytes of a regular file: a read-only private mapping, or, of a file of 64 KiB or less and
// where the system maps none (a file system without mmap, too many mappings), a copy in memory.
// Movable; the address of the bytes does not change when the object moves. A file must not be
// shortened while mapped: see tell_of_lost_pages(). Files written by AtomicFile are replaced, never
// shortened.
class MappedFile {
 public:
  // Throws Error (environment) where there is no such regular file, or it can be neither mapped nor
  // read.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Aligned to 64 bytes; null where the file is empty.
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Lets the system take back the pages that lie wholly within [offset, offset + length): for
  // weights that have been converted and will not be read again. Reading them later is still
  // right, only slower. Beyond the end is clipped. Nothing happens to a copy.
  void drop_pages(std::size_t offset, std::size_t length) const;

 private:
  void map(int descriptor);
  void copy(int descriptor, int reason);

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool mapped_ = false;  // else a copy
};

// A page of a mapping that is gone, because the file became shorter or its disk failed, raises
// SIGBUS, in which nothing can be thrown. From here on the process then ends with the code 1 and
// one line on standard error, "COMMAND: error: FILE: became shorter ...". `command` outlives the
// process. SIGBUS for other reasons kills it as before.
void tell_of_lost_pages(const char* command);

}  // namespace twell::io
