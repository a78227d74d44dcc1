#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "io/file_error.h"

namespace twell::io {

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) fail_file(path_.string(), "cannot be opened: {}", system_reason(errno));
  struct stat status {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  void* address = nullptr;
  int error = 0;
  if (regular && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    error = errno;
  }
  ::close(descriptor);
  if (!regular) fail_file(path_.string(), "is not a regular file");
  if (address == MAP_FAILED)
    fail_file(path_.string(), "cannot be mapped: {}", system_reason(error));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::drop_pages(std::size_t offset, std::size_t length) const {
  if (data_ == nullptr || offset >= size_) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t end = length > size_ - offset ? size_ : offset + length;
  const std::size_t first = (offset + page - 1) / page * page;
  // The last page of the file belongs to the range as a whole, though the file may end within it.
  const std::size_t last = end == size_ ? (end + page - 1) / page * page : end / page * page;
  if (first >= last) return;
  ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

}  // namespace twell::io
