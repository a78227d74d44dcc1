#include "files/atomic_file.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <iostream>
#include <thread>
#include <utility>

#include "tests/support/files.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;

std::size_t entries(const fs::path& directory) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

// Runs `action` in a child process; its exit status, or -1 where a signal ended it.
int in_child(const std::function<int()>& action) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = action();
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
    }
    ::_exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(AtomicFile, ReplacesOnlyOnCommit) {
  const TempDir dir;
  spit(dir / "file", "old");
  {
    AtomicFile file(dir / "file");
    file.write("new ");
    file.write("text");
    EXPECT_EQ(slurp(dir / "file"), "old");
    file.commit();
    EXPECT_EQ(slurp(dir / "file"), "new text");
    EXPECT_EQ(file.size(), 8U);
  }
  EXPECT_EQ(slurp(dir / "file"), "new text");
  EXPECT_EQ(entries(dir.path()), 1U);
}

// In a process that ends without unwinding, while another thread would go on.
TEST(AtomicFile, WhatIsUnfinishedIsRemovedAndStaysSo) {
  const TempDir dir;
  spit(dir / "file", "old");
  const int status = in_child([&] {
    AtomicFile done(dir / "done"), file(dir / "file");
    AtomicFile moved = std::move(file);
    moved.write("new");
    done.commit();
    std::thread writer([&] {
      remove_unfinished();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      ::_exit(7);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    moved.commit();
    return 8;
  });
  EXPECT_EQ(status, 7);
  EXPECT_EQ(slurp(dir / "file"), "old");
  EXPECT_EQ(entries(dir.path()), 2U);  // and "done"
}

TEST(AtomicFile, WithoutCommitNothingChanges) {
  const TempDir dir;
  spit(dir / "file", "old");
  { AtomicFile(dir / "file").write("new"); }
  { AtomicFile(dir / "other").write("new"); }
  EXPECT_EQ(slurp(dir / "file"), "old");
  EXPECT_EQ(entries(dir.path()), 1U);
}

TEST(AtomicFile, WritesAtOffsets) {
  const TempDir dir;
  AtomicFile file(dir / "file");
  const std::string text = "xyz";
  file.write_at(4, std::as_bytes(std::span(text)));
  file.write_at(0, std::as_bytes(std::span(text)));
  file.write("!");
  file.commit();
  EXPECT_EQ(slurp(dir / "file"), std::string("xyz\0xyz!", 8));
}

TEST(AtomicFile, KeepsModeAndFollowsLinks) {
  const TempDir dir;
  spit(dir / "target", "old");
  fs::permissions(dir / "target", fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("target", dir / "link");
  write_file_atomically(dir / "link", "new");
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(slurp(dir / "target"), "new");
  EXPECT_EQ(fs::status(dir / "target").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST(AtomicFile, MovesWithoutHarm) {
  const TempDir dir;
  AtomicFile first(dir / "file");
  first.write("a");
  AtomicFile second(std::move(first));
  second.write("b");
  second.commit();
  EXPECT_EQ(slurp(dir / "file"), "ab");
  expect_error([&] { second.write("c"); }, ErrorKind::invalid_argument, "AtomicFile::write",
               {"closed"});
}

TEST(AtomicFile, RefusesWhatItCannotWrite) {
  const TempDir dir;
  const auto open = [](const fs::path& path) { return [path] { AtomicFile file(path); }; };
  expect_file_error(open(dir / "no/such/file"), (dir / "no/such/file").string(),
                    {"No such file or directory"});
  fs::create_directory(dir / "directory");
  expect_file_error(open(dir / "directory"), (dir / "directory").string(), {"not a regular file"});
  expect_file_error(open("/dev/null"), "/dev/null", {"not a regular file"});
  expect_file_error(open(dir.path().string() + "/"), dir.path().string(), {"file name"});
}

// A limit on the size of files fails like a full disk, and needs no rights.
TEST(AtomicFile, FullDiskLeavesTheOldFile) {
  const TempDir dir;
  spit(dir / "file", "old");
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomically(dir / "file", std::string(1'000'000, 'x'));
      return 1;
    } catch (const Error& error) {
      const std::string message = error.what();
      return message.starts_with((dir / "file").string()) &&
                     message.find("what was there before is kept") != message.npos &&
                     message.find('\n') == message.npos
                 ? 0
                 : 2;
    }
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(slurp(dir / "file"), "old");
  EXPECT_EQ(entries(dir.path()), 1U);
}

// A mount of 256 KiB that only this process sees; false where that is not allowed.
bool mount_small_disk(const fs::path& directory) {
  const uid_t user = ::getuid();
  if (::unshare(CLONE_NEWNS) != 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    spit("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
  }
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", directory.c_str(), "tmpfs", 0, "size=256k") == 0;
}

TEST(AtomicFile, ReallyFullDisk) {
  const TempDir dir;
  constexpr int kCannotMount = 77;
  const int status = in_child([&] {
    if (!mount_small_disk(dir.path())) return kCannotMount;
    write_file_atomically(dir / "file", std::string(100'000, 'o'));
    try {
      write_file_atomically(dir / "file", std::string(1'000'000, 'n'));
      return 1;
    } catch (const Error& error) {
      if (std::string(error.what()).find("No space left") == std::string::npos) return 2;
    }
    return slurp(dir / "file") == std::string(100'000, 'o') && entries(dir.path()) == 1 ? 0 : 3;
  });
  if (status == kCannotMount) GTEST_SKIP() << "no right to mount a small disk";
  EXPECT_EQ(status, 0);
}

TEST(AtomicFile, KilledWhileSavingLeavesTheOldFile) {
  const TempDir dir;
  spit(dir / "file", "old");
  const int status = in_child([&] {
    AtomicFile file(dir / "file");
    file.write(std::string(100'000, 'x'));
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  EXPECT_EQ(status, -1);
  EXPECT_EQ(slurp(dir / "file"), "old");
  EXPECT_EQ(entries(dir.path()), 2U);  // what it left behind
  write_file_atomically(dir / "file", "new");
  EXPECT_EQ(slurp(dir / "file"), "new");
  EXPECT_EQ(entries(dir.path()), 1U);  // is gone
}

// Readers and writers in parallel: every reader sees one whole version.
TEST(AtomicFile, NobodySeesHalfAFile) {
  const TempDir dir;
  const std::string a(50'000, 'a');
  const std::string b(70'000, 'b');
  write_file_atomically(dir / "file", a);
  std::atomic<bool> done = false;
  std::atomic<int> torn = 0;
  std::thread reader([&] {
    while (!done) {
      const std::string seen = slurp(dir / "file");
      if (seen != a && seen != b) ++torn;
    }
  });
  const auto write = [&](const std::string& text) {
    for (int i = 0; i < 50; ++i) write_file_atomically(dir / "file", text);
  };
  std::thread first(write, a);
  std::thread second(write, b);
  first.join();
  second.join();
  done = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(entries(dir.path()), 1U);
}

TEST(ReadFile, WholeFilesAndTheirFaults) {
  const TempDir dir;
  const std::string contents("a\0b\n", 4);
  spit(dir / "file", contents);
  spit(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "file"), contents);
  EXPECT_EQ(read_file(dir / "empty"), "");
  expect_file_error([&] { read_file(dir / "none"); }, (dir / "none").string(), {"No such file"});
  expect_file_error([&] { read_file(dir.path()); }, dir.path().string(), {"not a regular file"});
  expect_file_error([&] { read_file(dir / "file", 3); }, (dir / "file").string(), {"4 bytes"});
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_file_error([&] { read_file(dir / "pipe"); }, (dir / "pipe").string(),
                    {"not a regular file"});
}

}  // namespace
}  // namespace twell::io
