// File systems of other people: calls that fail, or do less than they were asked, as they do on
// Lustre, CIFS, FUSE and NFS. Linked into a test, or loaded before a program (LD_PRELOAD), these
// definitions come before those of the C library. The environment variable TWELL_TEST_LACKS names
// what is to fail, with commas between; nothing does where it is unset.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // RTLD_NEXT
#endif
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

bool lacks(const char* what) {
  const char* all = std::getenv("TWELL_TEST_LACKS");
  if (all == nullptr) return false;
  const std::size_t length = std::strlen(what);
  for (const char* at = all; (at = std::strstr(at, what)) != nullptr; at += length) {
    const bool begins = at == all || at[-1] == ',';
    if (begins && (at[length] == ',' || at[length] == '\0')) return true;
  }
  return false;
}

int fails(int error) {
  errno = error;
  return -1;
}

// Every second call is interrupted by a signal.
bool interrupted() {
  static thread_local bool now = false;
  if (!lacks("patience")) return false;
  now = !now;
  return now;
}

std::size_t some_of(std::size_t count) {
  return lacks("long transfers") ? std::min<std::size_t>(count, 1000) : count;
}

bool is(int descriptor, mode_t kind) {
  struct stat status = {};
  return descriptor >= 0 && ::fstat(descriptor, &status) == 0 && (status.st_mode & S_IFMT) == kind;
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int flock(int descriptor, int operation) noexcept {
  if (lacks("flock")) return fails(ENOSYS);
  if (lacks("lock daemon")) return fails(ENOLCK);
  return next<int(int, int)>("flock")(descriptor, operation);
}

int fsync(int descriptor) {
  if (interrupted()) return fails(EINTR);
  if (lacks("fsync of directories") && is(descriptor, S_IFDIR)) return fails(EINVAL);
  if (lacks("a sound disk") && is(descriptor, S_IFREG)) return fails(EIO);
  return next<int(int)>("fsync")(descriptor);
}

void* mmap(void* address, std::size_t length, int protection, int flags, int descriptor,
           off_t offset) noexcept {
  if (protection == PROT_READ && descriptor >= 0 && is(descriptor, S_IFREG)) {
    const int error = lacks("mmap") ? ENODEV : lacks("mappings") ? ENOMEM : 0;
    if (error != 0) {
      errno = error;
      return MAP_FAILED;
    }
  }
  return next<void*(void*, std::size_t, int, int, int, off_t)>("mmap")(address, length, protection,
                                                                       flags, descriptor, offset);
}

int symlink(const char* target, const char* path) noexcept {
  if (lacks("links")) return fails(EPERM);
  return next<int(const char*, const char*)>("symlink")(target, path);
}

int fchmod(int descriptor, mode_t mode) noexcept {
  if (lacks("modes")) return fails(EPERM);
  return next<int(int, mode_t)>("fchmod")(descriptor, mode);
}

int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  // Not what libraries ask the machine.
  const bool of_system = std::strncmp(path, "/proc", 5) == 0 || std::strncmp(path, "/sys", 4) == 0;
  if (!of_system && interrupted()) return fails(EINTR);
  return next<int(const char*, int, ...)>("open")(path, flags, mode);
}

ssize_t pread(int descriptor, void* out, std::size_t count, off_t offset) {
  if (interrupted()) return fails(EINTR);
  return next<ssize_t(int, void*, std::size_t, off_t)>("pread")(descriptor, out, some_of(count),
                                                                offset);
}

ssize_t pwrite(int descriptor, const void* in, std::size_t count, off_t offset) {
  if (interrupted()) return fails(EINTR);
  return next<ssize_t(int, const void*, std::size_t, off_t)>("pwrite")(descriptor, in,
                                                                       some_of(count), offset);
}

}  // extern "C"
