#include "files/system_call.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "files/file_error.h"

namespace twell::io {

int open_file(const std::filesystem::path& path, int flags) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

int open_to_read(const std::filesystem::path& path) {
  const int descriptor = open_file(path, O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) fail_file(path.string(), "cannot be opened: {}", system_reason(errno));
  return descriptor;
}

std::size_t read_bytes(int descriptor, std::span<std::byte> out,
                       const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count =
        ::pread(descriptor, out.data() + done, out.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_file(path.string(), "cannot be read: {}", system_reason(errno));
    if (count == 0) break;  // it became shorter since its length was asked for
    done += static_cast<std::size_t>(count);
  }
  return done;
}

int write_bytes(int descriptor, std::span<const std::byte> bytes, std::uint64_t& offset) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return count < 0 ? errno : ENOSPC;
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return 0;
}

int sync(int descriptor) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    return is_missing_operation(errno) ? 0 : errno;
  }
  return 0;
}

bool is_missing_operation(int error) {
  switch (error) {
    case ENOSYS:      // FUSE, Lustre without -o flock
    case EINVAL:      // CIFS and others: fsync of a directory
    case ENODEV:      // mmap
    case ENOLCK:      // NFS without a lock daemon
    case EPERM:       // FAT, CIFS: symbolic links
    case EOPNOTSUPP:  // and ENOTSUP, which is the same on Linux
    case ENOTTY:
      return true;
    default:
      return false;
  }
}

}  // namespace twell::io
