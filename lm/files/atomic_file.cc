#include "files/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include "files/file_error.h"
#include "files/system_call.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kSuffix = ".twell-tmp";

std::string temporary_prefix(const fs::path& path) {
  return fmt::format(".{}.", path.filename().string());
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// A writer holds a lock on its temporary file as long as it lives: one that can be locked here was
// left behind by a process that was killed.
void remove_leftovers(const fs::path& path) {
  const std::string prefix = temporary_prefix(path);
  std::error_code ignored;
  for (auto entry = fs::directory_iterator(directory_of(path), ignored);
       !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
    const int descriptor = open_file(entry->path(), O_RDONLY | O_NOFOLLOW);
    if (descriptor < 0) continue;
    if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
    ::close(descriptor);
  }
}

// The name is random; O_EXCL makes sure that it is ours.
std::pair<int, fs::path> create_temporary(const fs::path& path) {
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::uint64_t tag = (static_cast<std::uint64_t>(random()) << 32) | random();
    fs::path temporary =
        directory_of(path) / fmt::format("{}{:016x}{}", temporary_prefix(path), tag, kSuffix);
    const int descriptor = open_file(temporary, O_RDWR | O_CREAT | O_EXCL);
    if (descriptor < 0) {
      if (errno == EEXIST) continue;
      fail_file(path.string(), "cannot write in this directory: {}", system_reason(errno));
    }
    // Another writer may have taken it for a leftover between open and lock: then it has no name.
    struct stat status {};
    if (::flock(descriptor, LOCK_EX) == 0 && ::fstat(descriptor, &status) == 0 &&
        status.st_nlink == 0) {
      ::close(descriptor);
      continue;
    }
    return {descriptor, std::move(temporary)};
  }
  fail_file(path.string(), "cannot make a temporary file beside it");
}

}  // namespace

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  if (path_.filename().empty()) fail_file(path_.string(), "is not a usable file name");
  if (fs::is_symlink(path_, error)) {
    path_ = fs::weakly_canonical(path_, error);
    if (error) fail_file(path_.string(), "cannot be followed: {}", error.message());
  }
  const auto status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail_file(path_.string(), "is there already and is not a regular file");
  }
  remove_leftovers(path_);
  std::tie(descriptor_, temporary_) = create_temporary(path_);
  unfinished_ = std::make_unique<Unfinished>([file = temporary_] { ::unlink(file.c_str()); });
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      size_(other.size_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      unfinished_(std::move(other.unfinished_)) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(std::exchange(descriptor_, -1));
  unfinished_.reset();
}

void AtomicFile::write(std::span<const std::byte> bytes) { write_at(size_, bytes); }

void AtomicFile::write(std::string_view bytes) { write(std::as_bytes(std::span(bytes))); }

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (descriptor_ < 0) fail_argument("AtomicFile::write", "{} is closed", path_.string());
  if (const int error = write_bytes(descriptor_, bytes, offset); error != 0) {
    discard();
    fail_file(path_.string(), "cannot be written at byte {}: {}; what was there before is kept",
              offset, system_reason(error));
  }
  size_ = std::max(size_, offset);
}

void AtomicFile::commit() {
  if (descriptor_ < 0) fail_argument("AtomicFile::commit", "{} is closed", path_.string());
  struct stat old {};
  if (::stat(path_.c_str(), &old) == 0) ::fchmod(descriptor_, old.st_mode & 07777U);
  int error = sync(descriptor_);
  if (error == 0) {
    unfinished_->finish([&] {
      if (::rename(temporary_.c_str(), path_.c_str()) != 0) error = errno;
    });
  }
  if (error != 0) {
    discard();
    fail_file(path_.string(), "cannot be saved: {}; what was there before is kept",
              system_reason(error));
  }
  ::close(std::exchange(descriptor_, -1));
  sync_directory(directory_of(path_));  // the rename itself must survive a power cut
}

void sync_directory(const fs::path& path) {
  const int descriptor = open_file(path, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return;  // one may write into a directory that one may not read
  const int error = sync(descriptor);
  ::close(descriptor);
  if (error != 0) {
    fail_file(path.string(), "cannot be synchronised: {}", system_reason(error));
  }
}

void write_file_atomically(const fs::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

std::string read_file(const fs::path& path, std::uint64_t max_bytes) {
  const int descriptor = open_to_read(path);
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } closer{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    fail_file(path.string(), "cannot be read: {}", system_reason(errno));
  }
  if (!S_ISREG(status.st_mode)) fail_file(path.string(), "is not a regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > max_bytes) {
    fail_file(path.string(), "has {} bytes, more than the {} expected of such a file", size,
              max_bytes);
  }
  std::string out(size, '\0');
  out.resize(read_bytes(descriptor, std::as_writable_bytes(std::span(out)), path));
  return out;
}

}  // namespace twell::io
