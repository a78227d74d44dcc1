// A file in memory, read only, without reading it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace twell::io {

// A read-only private mapping of a regular file. Movable; the address of the bytes does not change
// when the object moves. The file must not be shortened while mapped (the system raises SIGBUS);
// files written by AtomicFile are replaced, never shortened.
class MappedFile {
 public:
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Page-aligned; null where the file is empty.
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // Lets the system take back the pages that lie wholly within [offset, offset + length): for
  // weights that have been converted and will not be read again. Reading them later is still
  // right, only slower. Beyond the end is clipped.
  void drop_pages(std::size_t offset, std::size_t length) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace twell::io
