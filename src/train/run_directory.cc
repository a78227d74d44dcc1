#include "train/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/file_error.h"

namespace twell::lm {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".twell-tmp";
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kLock = ".lock";

void sync_directory(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0 || ::fsync(descriptor) != 0) {
    const int reason = errno;
    if (descriptor >= 0) ::close(descriptor);
    io::fail_file(path.string(), "cannot be synchronised: {}", io::system_reason(reason));
  }
  ::close(descriptor);
}

void check(const std::error_code& error, const fs::path& path, const char* what) {
  if (error) io::fail_file(path.string(), "{}: {}", what, io::system_reason(error.value()));
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::string name_of_step(std::int64_t step) { return fmt::format("step-{:08}", step); }

bool is_step_name(const std::string& name) {
  return name.size() > 5 && name.starts_with("step-") &&
         std::all_of(name.begin() + 5, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Who holds the lock. The owner writes its name right after locking: what is read at once can be
// empty, or the name of the owner before.
std::string name_of_owner(int lock) {
  char name[256] = {};
  for (int attempt = 0; attempt < 20 && name[0] == '\0'; ++attempt) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (::pread(lock, name, sizeof(name) - 1, 0) < 0) break;
  }
  return name[0] != '\0' ? name : "another process";
}

}  // namespace

AtomicDirectory::AtomicDirectory(fs::path path) : path_(std::move(path)) {
  if (!path_.has_filename()) path_ = path_.parent_path();  // "dir/"
  temporary_ = parent_of(path_) / fmt::format(".{}{}", path_.filename().string(), kTemporary);
  std::error_code error;
  if (fs::exists(fs::symlink_status(path_, error))) {
    io::fail_file(path_.string(), "exists already; it is not overwritten");
  }
  fs::remove_all(temporary_, error);
  check(error, temporary_, "cannot remove what an interrupted run left");
  fs::create_directories(temporary_, error);
  check(error, temporary_, "cannot make the directory");
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  for (const auto& entry : fs::recursive_directory_iterator(temporary_)) {
    if (entry.is_directory()) sync_directory(entry.path());
  }
  sync_directory(temporary_);
  std::error_code error;
  fs::rename(temporary_, path_, error);
  check(error, path_, "cannot rename the finished directory to this name");
  committed_ = true;
  sync_directory(parent_of(path_));
}

RunDirectory::RunDirectory(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  made_ = !fs::exists(path_, error);  // create_directories() does not say so of "run/"
  fs::create_directories(path_, error);
  check(error, path_, "cannot make the directory");
  const auto link = fs::symlink_status(path_ / kLatest, error);
  if (fs::exists(link) && !fs::is_symlink(link)) {
    io::fail_file((path_ / kLatest).string(),
                  "is no link to a checkpoint, as if copied; the checkpoints are beside it, in "
                  "step-*: remove it");
  }
  lock();
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step-") && name.ends_with(kTemporary)) fs::remove_all(entry.path());
    if (is_step_name(name) && !fs::exists(entry.path() / "config.json", error)) {
      ::close(lock_);
      io::fail_file(entry.path().string(), "is no checkpoint, which its name says: move it away");
    }
  }
}

RunDirectory::~RunDirectory() {
  std::error_code ignored;
  const auto entries = fs::directory_iterator(path_, ignored);
  if (made_ && std::distance(begin(entries), end(entries)) == 1) {
    fs::remove(path_ / kLock, ignored);
    fs::remove(path_, ignored);
  }
  ::close(lock_);
}

// The kernel drops the lock when the process ends, however it does.
void RunDirectory::lock() {
  const std::string file = (path_ / kLock).string();
  for (bool current = false; !current;) {
    lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (lock_ < 0) io::fail_file(file, "cannot be opened: {}", io::system_reason(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int reason = errno;
      const std::string name = reason == EWOULDBLOCK ? name_of_owner(lock_) : "";
      ::close(lock_);
      if (reason != EWOULDBLOCK) {
        io::fail_file(file, "cannot be locked: {}", io::system_reason(reason));
      }
      io::fail_file(path_.string(), "{} trains here: wait for its end, or choose another directory",
                    name);
    }
    // Not a file that its last owner removed after it was opened here.
    struct stat opened = {}, named = {};
    current = ::fstat(lock_, &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
              opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
    if (!current) ::close(lock_);
  }
  char host[128] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::string own = fmt::format("process {} on {}", ::getpid(), host);
  if (::ftruncate(lock_, 0) != 0 ||
      ::pwrite(lock_, own.data(), own.size(), 0) != static_cast<::ssize_t>(own.size())) {
    const int reason = errno;
    ::close(lock_);
    io::fail_file(file, "cannot be written: {}", io::system_reason(reason));
  }
}

std::optional<fs::path> latest_checkpoint(const fs::path& run) {
  std::error_code error;
  std::int64_t most = -1;
  std::optional<fs::path> out;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_step_name(name) || !fs::exists(entry.path() / "config.json", error)) continue;
    const std::int64_t step = std::strtoll(name.c_str() + 5, nullptr, 10);
    if (step > most) {
      most = step;
      out = entry.path();
    }
  }
  return out;
}

fs::path RunDirectory::add(std::int64_t step, std::int64_t keep,
                           const std::function<void(const fs::path&)>& save) {
  const std::string name = name_of_step(step);
  const fs::path directory = path_ / name;
  if (!fs::is_directory(directory)) save(directory);

  // A symbolic link cannot be changed in place; renaming another one over it is atomic.
  const fs::path link = path_ / fmt::format(".{}{}", kLatest, kTemporary);
  std::error_code error;
  fs::remove(link, error);
  fs::create_directory_symlink(name, link, error);
  check(error, link, "cannot make the symbolic link");
  fs::rename(link, path_ / kLatest, error);
  check(error, path_ / kLatest, "cannot replace the symbolic link");
  sync_directory(path_);

  // A run begins in a directory without checkpoints: all that are here are its own.
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string other = entry.path().filename().string();
    if (is_step_name(other) && other != name) others.push_back(other);
  }
  std::ranges::sort(others, std::greater<>());
  for (auto i = static_cast<std::size_t>(std::max<std::int64_t>(0, keep - 1)); i < others.size();
       ++i) {
    // Under its name it is whole or gone, wherever this stops.
    const fs::path going = path_ / fmt::format(".{}{}", others[i], kTemporary);
    fs::rename(path_ / others[i], going, error);
    if (!error) fs::remove_all(going, error);
    check(error, path_ / others[i], "cannot remove the older checkpoint");
  }
  return directory;
}

fs::path resolve_model_directory(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / "config.json", error)) return path;
  return latest_checkpoint(path).value_or(path);
}

}  // namespace twell::lm
