#include "files/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "files/atomic_file.h"
#include "files/file_error.h"
#include "files/note.h"
#include "files/system_call.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporary = ".twell-tmp";
constexpr std::string_view kLatest = "latest";
constexpr std::string_view kLock = ".lock";
constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kOwner = "process ";  // how the contents of a lock begin

void check(const std::error_code& error, const fs::path& path, const char* what) {
  if (error) fail_file(path.string(), "{}: {}", what, system_reason(error.value()));
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Without "/" at its end; of a link, which may lead to nothing yet, where it leads.
fs::path followed(fs::path path) {
  if (!path.has_filename()) path = path.parent_path();
  constexpr int kMostLinks = 40;
  std::error_code ignored;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, ignored); ++i) {
    path = parent_of(path) / fs::read_symlink(path, ignored);
  }
  return path;
}

fs::path temporary_of(const fs::path& parent, const fs::path& path) {
  return parent / fmt::format(".{}{}", path.filename().string(), kTemporary);
}

bool holds_only(const fs::path& directory, const fs::path& entry) {
  std::error_code error;
  const auto others = std::ranges::count_if(
      fs::directory_iterator(directory, error),
      [&](const auto& found) { return found.path().filename() != entry.filename(); });
  return !error && others == 0;
}

void rename_into_place(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  check(error, to, "cannot rename what is finished to this name");
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

bool is_free_directory(const fs::path& path) {
  std::error_code error;
  const fs::path target = followed(path);
  if (!fs::exists(fs::symlink_status(target, error))) return true;
  return fs::is_directory(target, error) && holds_only(target, temporary_of(target, target));
}

AtomicDirectory::AtomicDirectory(fs::path path) : path_(followed(std::move(path))) {
  if (!is_free_directory(path_)) {
    fail_file(path_.string(), "exists already; it is not overwritten");
  }
  std::error_code error;
  is_there_ = fs::is_directory(path_, error);
  temporary_ = temporary_of(is_there_ ? path_ : parent_of(path_), path_);
  fs::remove_all(temporary_, error);
  check(error, temporary_, "cannot remove what an interrupted run left");
  fs::create_directories(temporary_, error);
  check(error, temporary_, "cannot make the directory");
  unfinished_.emplace([this] {
    // Another thread may be adding a file to it.
    std::error_code ignored;
    for (int i = 0; i < 3; ++i) fs::remove_all(temporary_, ignored);
  });
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(temporary_, ignored);
}

void AtomicDirectory::commit() {
  std::vector<fs::path> inside;
  for (const auto& entry : fs::recursive_directory_iterator(temporary_)) {
    if (entry.is_directory()) sync_directory(entry.path());
    if (entry.path().parent_path() == temporary_) inside.push_back(entry.path().filename());
  }
  sync_directory(temporary_);
  unfinished_->finish([&] {
    if (!is_there_) return rename_into_place(temporary_, path_);
    // Without its config.json, which is the last, it is no model.
    std::partition(inside.begin(), inside.end(),
                   [](const fs::path& name) { return name != kConfig; });
    for (const fs::path& name : inside) rename_into_place(temporary_ / name, path_ / name);
    std::error_code ignored;
    fs::remove(temporary_, ignored);
  });
  committed_ = true;
  sync_directory(is_there_ ? path_ : parent_of(path_));
}

RunDirectory::RunDirectory(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  made_ = !fs::exists(path_, error);  // create_directories() does not say so of "run/"
  fs::create_directories(followed(path_), error);
  check(error, path_, "cannot make the directory");
  const auto link = fs::symlink_status(path_ / kLatest, error);
  if (fs::exists(link) && !fs::is_symlink(link)) {
    fail_file((path_ / kLatest).string(),
              "is no link to a checkpoint, as if copied; the checkpoints are beside it, in "
              "step-*: remove it");
  }
  lock();
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step-") && name.ends_with(kTemporary)) {
      fs::remove_all(entry.path(), error);
    }
    if (is_step_name(name) && !fs::exists(entry.path() / kConfig, error)) {
      ::close(lock_);
      fail_file(entry.path().string(), "is no checkpoint, which its name says: move it away");
    }
  }
  unfinished_.emplace([this] { remove_if_empty(); });
}

RunDirectory::~RunDirectory() {
  unfinished_.reset();
  remove_if_empty();
  ::close(lock_);
}

void RunDirectory::remove_if_empty() const {
  std::error_code ignored;
  const auto entries = fs::directory_iterator(path_, ignored);
  if (made_ && std::distance(begin(entries), end(entries)) == 1) {
    fs::remove(path_ / kLock, ignored);
    fs::remove(path_, ignored);
  }
}

// The kernel drops the lock when the process ends, however it does.
void RunDirectory::lock() {
  const std::string file = (path_ / kLock).string();
  bool mine = true;  // to write into: of another user it can be locked all the same
  for (bool current = false; !current;) {
    lock_ = open_file(file, O_RDWR | O_CREAT);
    mine = lock_ >= 0;
    if (!mine && errno == EACCES) lock_ = open_file(file, O_RDONLY);
    if (lock_ < 0) fail_file(file, "cannot be opened: {}", system_reason(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) refuse_or_go_without(errno);
    // Not a file that its last owner removed after it was opened here.
    struct stat opened = {}, named = {};
    current = ::fstat(lock_, &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
              opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
    if (!current) ::close(lock_);
  }
  if (!mine) return;
  char host[128] = {};
  ::gethostname(host, sizeof(host) - 1);
  const std::string own = fmt::format("{}{} on {}", kOwner, ::getpid(), host);
  std::uint64_t end = 0;
  int reason = write_bytes(lock_, std::as_bytes(std::span(own)), end);
  if (reason == 0 && ::ftruncate(lock_, static_cast<::off_t>(end)) != 0) reason = errno;
  if (reason != 0) {
    ::close(lock_);
    fail_file(file, "cannot be written: {}", system_reason(reason));
  }
}

// Where the lock could not be had for `reason`.
void RunDirectory::refuse_or_go_without(int reason) {
  if (is_missing_operation(reason)) {
    note(
        fmt::format("{}: its file system has no locks ({}); nothing keeps a second process from "
                    "training there",
                    path_.string(), system_reason(reason)));
    return;
  }
  const std::string name = reason == EWOULDBLOCK ? name_of_owner(lock_) : "";
  ::close(lock_);
  if (reason != EWOULDBLOCK) {
    fail_file((path_ / kLock).string(), "cannot be locked: {}", system_reason(reason));
  }
  fail_file(path_.string(), "{} trains here: wait for its end, or choose another directory", name);
}

bool is_run_directory(const fs::path& path) {
  std::string begin(kOwner.size(), '\0');
  std::ifstream lock(path / kLock, std::ios::binary);
  lock.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == kOwner || latest_checkpoint(path).has_value();
}

std::optional<fs::path> latest_checkpoint(const fs::path& run) {
  std::error_code error;
  std::int64_t most = -1;
  std::optional<fs::path> out;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    const std::string name = entry.path().filename().string();
    if (!is_step_name(name) || !fs::exists(entry.path() / kConfig, error)) continue;
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
  fs::path directory = path_ / name;
  if (!fs::is_directory(directory)) save(directory);
  link_latest(name);
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
    const fs::path going = temporary_of(path_, others[i]);
    std::error_code error;
    fs::rename(path_ / others[i], going, error);
    check(error, path_ / others[i], "cannot remove the older checkpoint");
    // On NFS a file that somebody reads stays; the next run here tries again.
    fs::remove_all(going, error);
    if (error) {
      note(fmt::format("{} cannot be removed now: {}", going.string(),
                       system_reason(error.value())));
    }
  }
  return directory;
}

// A symbolic link cannot be changed in place; renaming another one over it is atomic.
void RunDirectory::link_latest(const std::string& name) {
  const fs::path link = temporary_of(path_, kLatest);
  std::error_code error;
  fs::remove(link, error);
  fs::create_directory_symlink(name, link, error);
  if (is_missing_operation(error.value())) {
    note(fmt::format("{}: its file system has no links, so there is no \"{}\"", path_.string(),
                     kLatest));
    return;
  }
  check(error, link, "cannot make the symbolic link");
  fs::rename(link, path_ / kLatest, error);
  check(error, path_ / kLatest, "cannot replace the symbolic link");
}

fs::path resolve_model_directory(const fs::path& path) {
  std::error_code error;
  if (fs::exists(path / kConfig, error)) return path;
  return latest_checkpoint(path).value_or(path);
}

}  // namespace twell::io
