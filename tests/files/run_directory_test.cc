// Directories that are there whole or not at all, and that of a training run.
#include "files/run_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "files/atomic_file.h"
#include "tests/support/message_of.h"
#include "tests/support/scratch.h"
#include "twell/status.h"
namespace twell::io {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::Scratch;

TEST(RunDirectoryTest, LatestPointsToAWholeCheckpoint) {
  const Scratch scratch;
  RunDirectory run(scratch.path() / "run");
  EXPECT_FALSE(latest_checkpoint(run.path()));
  const auto save = [](const fs::path& path) {
    AtomicDirectory directory(path);
    write_file_atomically(directory.temporary() / "config.json", "{}");
    directory.commit();
  };
  run.add(5, 1, save);
  EXPECT_EQ(latest_checkpoint(run.path())->filename(), "step-00000005");
  EXPECT_THROW(run.add(10, 1,
                       [](const fs::path& path) {
                         AtomicDirectory directory(path);
                         write_file_atomically(directory.temporary() / "config.json", "{");
                         throw Error(ErrorKind::environment, "disk", "full");
                       }),
               Error);
  EXPECT_EQ(latest_checkpoint(run.path())->filename(), "step-00000005");
  EXPECT_TRUE(fs::exists(*latest_checkpoint(run.path()) / "config.json"));
  run.add(10, 2, save);
  EXPECT_EQ(latest_checkpoint(run.path())->filename(), "step-00000010");
  EXPECT_TRUE(fs::exists(run.path() / "step-00000005"));
  run.add(15, 1, save);
  EXPECT_FALSE(fs::exists(run.path() / "step-00000005"));
  EXPECT_FALSE(fs::exists(run.path() / "step-00000010"));
  EXPECT_EQ(fs::read_symlink(run.path() / "latest"), "step-00000015");
  EXPECT_EQ(resolve_model_directory(run.path()), run.path() / "step-00000015");
  EXPECT_EQ(resolve_model_directory(run.path() / "latest"), run.path() / "latest");
}

TEST(RunDirectoryTest, RemovesWhatAKilledProcessLeft) {
  const Scratch scratch;
  fs::create_directories(scratch.path() / ".step-00000007.twell-tmp" / "trainer");
  const RunDirectory run(scratch.path());
  EXPECT_FALSE(fs::exists(scratch.path() / ".step-00000007.twell-tmp"));
  EXPECT_FALSE(latest_checkpoint(run.path()));
}

// Tools that copy drop links, or follow them.
TEST(RunDirectoryTest, FindsCheckpointsWithoutTheirLink) {
  const Scratch scratch;
  for (const char* name :
       {"step-00000002", "step-00000010", "step-100000000", "latest", "step-9x"}) {
    fs::create_directories(scratch.path() / name);
    if (name != std::string("step-100000000")) {
      write_file_atomically(scratch.path() / name / "config.json", "{}");
    }
  }
  EXPECT_EQ(resolve_model_directory(scratch.path()), scratch.path() / "step-00000010");
  EXPECT_TRUE(contains(message_of([&] { RunDirectory run(scratch.path()); }), "is no link"));
  fs::remove_all(scratch.path() / "latest");
  EXPECT_TRUE(contains(message_of([&] { RunDirectory run(scratch.path()); }), "is no checkpoint"));
  fs::remove_all(scratch.path() / "step-100000000");
  const RunDirectory run(scratch.path());
  EXPECT_EQ(latest_checkpoint(run.path()), scratch.path() / "step-00000010");
}

TEST(RunDirectoryTest, HasOneOwner) {
  const Scratch scratch;
  {
    const RunDirectory run(scratch.path());
    const std::string message = message_of([&] { RunDirectory other(scratch.path()); });
    EXPECT_TRUE(contains(message, "process " + std::to_string(getpid()) + " on ")) << message;
    EXPECT_TRUE(contains(message, "trains here")) << message;
  }
  const RunDirectory again(scratch.path());
  // Of a run that failed at once nothing stays; of others, what was there.
  { const RunDirectory failed(scratch.path() / "new"); }
  EXPECT_FALSE(fs::exists(scratch.path() / "new"));
  EXPECT_TRUE(fs::exists(scratch.path()));
}

// Between locking and writing the name, the file is empty.
TEST(RunDirectoryTest, WaitsForTheNameOfItsOwner) {
  const Scratch scratch;
  const std::string file = (scratch.path() / ".lock").string();
  const int lock = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  std::thread owner([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    constexpr std::string_view kName = "process 1 on host";
    EXPECT_EQ(::write(lock, kName.data(), kName.size()), 17);
  });
  const std::string message = message_of([&] { RunDirectory other(scratch.path()); });
  owner.join();
  ::close(lock);
  EXPECT_TRUE(contains(message, "process 1 on host trains here")) << message;
}

TEST(RunDirectoryTest, DoesNotOverwriteADirectory) {
  const Scratch scratch;
  fs::create_directories(scratch.path() / "model" / "mine");
  write_file_atomically(scratch.path() / "file", "");
  for (const char* name : {"model", "model/", "file"}) {
    EXPECT_FALSE(is_free_directory(scratch.path() / name));
    EXPECT_TRUE(
        contains(message_of([&] { AtomicDirectory directory(scratch.path() / name); }), "exists"));
  }
}

std::vector<std::string> names_in(const fs::path& path) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(path)) out.push_back(entry.path().filename());
  std::ranges::sort(out);
  return out;
}

void write_model(AtomicDirectory& directory) {
  fs::create_directory(directory.temporary() / "trainer");
  write_file_atomically(directory.temporary() / "config.json", "{}");
  write_file_atomically(directory.temporary() / "weights", "");
}

// An empty directory may be a mount, or all that its owner lets us write to: it stays, and nothing
// is made beside it.
TEST(RunDirectoryTest, FillsAnEmptyDirectory) {
  const Scratch scratch;
  const fs::path out = scratch.path() / "out";
  fs::create_directory(out);
  fs::permissions(out, fs::perms::owner_all);
  EXPECT_TRUE(is_free_directory(out));
  {
    AtomicDirectory directory(out);
    write_model(directory);
    EXPECT_EQ(names_in(scratch.path()), std::vector<std::string>{"out"});
    EXPECT_FALSE(fs::exists(out / "config.json"));
  }
  EXPECT_TRUE(names_in(out).empty());
  fs::create_directories(out / ".out.twell-tmp" / "left by a killed process");
  EXPECT_TRUE(is_free_directory(out));
  AtomicDirectory directory(out);
  write_model(directory);
  directory.commit();
  EXPECT_EQ(names_in(out), (std::vector<std::string>{"config.json", "trainer", "weights"}));
  EXPECT_EQ(fs::status(out).permissions(), fs::perms::owner_all);
}

// People link to where there is room.
TEST(RunDirectoryTest, FollowsLinks) {
  const Scratch scratch;
  for (const bool there : {true, false}) {
    const fs::path disk = scratch.path() / (there ? "disk" : "not-yet");
    const fs::path link = scratch.path() / (there ? "link" : "dangling");
    if (there) fs::create_directory(disk);
    fs::create_symlink(disk.filename(), link);
    EXPECT_TRUE(is_free_directory(link));
    AtomicDirectory directory(link);
    write_model(directory);
    directory.commit();
    EXPECT_TRUE(fs::is_symlink(link));
    EXPECT_TRUE(fs::exists(disk / "config.json"));
  }
  fs::create_symlink("run-here", scratch.path() / "run");
  const RunDirectory run(scratch.path() / "run");
  EXPECT_TRUE(fs::exists(scratch.path() / "run-here" / ".lock"));
}

}  // namespace
}  // namespace twell::io
