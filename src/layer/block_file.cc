// A LayerBlock as a file.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <system_error>
#include <utility>

#include "core/check.h"
#include "twell/layer_block.h"

namespace twell {
namespace {

// In one line.
std::string shown(std::string path) {
  std::replace_if(
      path.begin(), path.end(), [](unsigned char c) { return c < ' '; }, '?');
  return path.empty() ? "''" : path;
}
[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::environment, shown(path), what);
}
[[noreturn]] void fail(const std::string& path, const char* what, int reason) {
  fail(path, concat(what, ": ", std::generic_category().message(reason)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

// The pages of a file, which the last copy unmaps.
std::shared_ptr<void> map(const std::string& path, int fd, std::size_t bytes, int protection) {
  void* const data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) fail(path, "cannot be mapped", errno);
  return {data, [bytes](void* p) { ::munmap(p, bytes); }};
}

// The file that a name leads to: what replaces a symbolic link would leave the file as it was.
std::string followed(const std::string& path) {
  char target[PATH_MAX];
  if (::realpath(path.c_str(), target) != nullptr) return target;
  const int reason = errno;
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) fail(path, "leads nowhere", reason);
  return path;
}

// Beside `path`; removed unless it was renamed.
class Temporary {
 public:
  explicit Temporary(const std::string& path) {
    const std::size_t name = path.rfind('/') + 1;  // 0 without a directory
    std::random_device random;
    char tag[32];
    std::snprintf(tag, sizeof tag, "%08x%08x", random(), random());
    name_ = concat(path.substr(0, name), ".", tag, ".twell-tmp");
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() { ::unlink(name_.c_str()); }
  const char* name() const { return name_.c_str(); }

 private:
  std::string name_;
};

}  // namespace

void LayerBlock::save(const std::string& path) const {
  const std::string target = followed(path);
  struct stat old {};
  const bool there = ::stat(target.c_str(), &old) == 0;
  if (there && !S_ISREG(old.st_mode)) fail(path, "is there already and is not a regular file");
  const Temporary temporary(target);
  const Descriptor file(::open(temporary.name(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) fail(path, "cannot write beside it", errno);
  if (there && ::fchmod(file.get(), old.st_mode & 07777) != 0) {
    fail(path, "cannot be given its mode", errno);
  }
  // Reserved first: a disk that is full is then an error here, and no signal while it is written.
  if (const int reason = ::posix_fallocate(file.get(), 0, static_cast<off_t>(size()))) {
    fail(path, "cannot be written", reason);
  }
  write(map(path, file.get(), size(), PROT_READ | PROT_WRITE).get());
  if (::fsync(file.get()) != 0) fail(path, "cannot be written", errno);
  if (::rename(temporary.name(), target.c_str()) != 0) fail(path, "cannot be replaced", errno);
}

LayerBlock LayerBlock::open(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail(path, "cannot be opened", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(path, "cannot be read", errno);
  if (!S_ISREG(status.st_mode)) fail(path, "is not a regular file");
  if (status.st_size == 0) fail(path, "is empty");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const std::shared_ptr<const void> data = map(path, file.get(), bytes, PROT_READ);
  try {
    return view({static_cast<const std::byte*>(data.get()), bytes}, data);
  } catch (const Error& error) {
    fail(path, error.what());
  }
}

}  // namespace twell
