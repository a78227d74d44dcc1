#include "files/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "files/file_error.h"
#include "files/note.h"
#include "files/system_call.h"

namespace twell::io {
namespace {

// A process may have 65,530 mappings, and tens of thousands of small token shards are no rarity. A
// mapping of a small file saves nothing.
constexpr std::size_t kLargestCopy = 64 << 10;
constexpr std::align_val_t kAlignment{64};

// What is mapped, as a signal handler can read it.
struct Place {
  std::atomic<const std::byte*> begin = nullptr;  // null: free
  std::size_t size = 0;
  std::array<char, 512> name = {};
};
std::array<Place, 1024> g_places;  // mappings beyond these have no name
std::mutex g_places_mutex;         // of those that write
const char* g_command = "";
std::size_t g_page = 0;  // bytes: the last page of a mapping goes beyond the file's end

void enter(const std::byte* begin, std::size_t size, const std::string& name) {
  const std::lock_guard lock(g_places_mutex);
  const auto free = std::ranges::find_if(g_places, [](const Place& p) { return !p.begin.load(); });
  if (free == g_places.end()) return;
  free->size = size;
  free->name[name.copy(free->name.data(), free->name.size() - 1)] = '\0';
  free->begin.store(begin);
}

void leave(const std::byte* begin) {
  const std::lock_guard lock(g_places_mutex);
  const auto place =
      std::ranges::find_if(g_places, [&](const Place& p) { return p.begin.load() == begin; });
  if (place != g_places.end()) place->begin.store(nullptr);
}

void put(const char* text) {
  if (::write(STDERR_FILENO, text, std::strlen(text)) < 0) return;  // nobody to tell
}

extern "C" void on_lost_page(int, siginfo_t* info, void*) {
  const auto* at = static_cast<const std::byte*>(info->si_addr);
  for (const Place& place : g_places) {
    const std::byte* begin = place.begin.load();
    if (begin == nullptr || at < begin || at >= begin + place.size + g_page) continue;
    put(g_command);
    put(": error: ");
    put(place.name.data());
    put(": became shorter while it was read, or its disk failed; leave the file alone and retry\n");
    ::_exit(1);
  }
  std::signal(SIGBUS, SIG_DFL);  // and the instruction fails again
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const int descriptor = open_to_read(path_);
  struct Closer {
    int descriptor;
    ~Closer() { ::close(descriptor); }
  } closer{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    fail_file(path_.string(), "is not a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > kLargestCopy) {
    map(descriptor);
  } else if (size_ > 0) {
    copy(descriptor, 0);
  }
}

void MappedFile::map(int descriptor) {
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address != MAP_FAILED) {
    data_ = static_cast<const std::byte*>(address);
    mapped_ = true;
    enter(data_, size_, path_.string());
    return;
  }
  const int reason = errno;
  if (!is_missing_operation(reason) && reason != ENOMEM && reason != EACCES) {
    fail_file(path_.string(), "cannot be mapped: {}", system_reason(reason));
  }
  if (reason != ENOMEM) {
    note(fmt::format("{}: its file system maps no files, they are read into memory",
                     path_.parent_path().string()));
  }
  copy(descriptor, reason);
}

void MappedFile::copy(int descriptor, int reason) {
  auto* bytes = static_cast<std::byte*>(::operator new(size_, kAlignment, std::nothrow));
  if (bytes == nullptr) {
    fail_file(path_.string(), "there is no memory for its {} bytes: {}", size_,
              system_reason(reason == 0 ? ENOMEM : reason));
  }
  data_ = bytes;  // the destructor does not run where the constructor throws
  std::size_t found = 0;
  try {
    found = read_bytes(descriptor, {bytes, size_}, path_);
  } catch (...) {
    ::operator delete(bytes, kAlignment);
    throw;
  }
  size_ = found;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  auto* bytes = const_cast<std::byte*>(data_);
  if (mapped_) {
    leave(data_);
    ::munmap(bytes, size_);
  } else {
    ::operator delete(bytes, kAlignment);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(other.mapped_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

void MappedFile::drop_pages(std::size_t offset, std::size_t length) const {
  // Of a copy the pages would come back as zeros.
  if (!mapped_ || offset >= size_) return;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t end = length > size_ - offset ? size_ : offset + length;
  const std::size_t first = (offset + page - 1) / page * page;
  // The last page of the file belongs to the range as a whole, though the file may end within it.
  const std::size_t last = end == size_ ? (end + page - 1) / page * page : end / page * page;
  if (first >= last) return;
  ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

void tell_of_lost_pages(const char* command) {
  g_command = command;
  g_page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = on_lost_page;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace twell::io
