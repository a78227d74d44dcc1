#include "files/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/files.h"

namespace twell::io {
namespace {

// Pages of this process that are in memory and come from files.
std::size_t resident_file_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0;
  std::size_t resident = 0;
  std::size_t shared = 0;
  statm >> size >> resident >> shared;
  return shared * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(MappedFile, SeesTheBytes) {
  const TempDir dir;
  spit(dir / "file", "hello");
  MappedFile file(dir / "file");
  EXPECT_EQ(file.size(), 5U);
  EXPECT_EQ(std::memcmp(file.data(), "hello", 5), 0);
  const std::byte* address = file.data();
  MappedFile moved(std::move(file));
  EXPECT_EQ(moved.data(), address);
  EXPECT_EQ(file.size(), 0U);  // NOLINT(bugprone-use-after-move): that is what is tested
  spit(dir / "other", "x");
  moved = MappedFile(dir / "other");
  EXPECT_EQ(moved.size(), 1U);
}

TEST(MappedFile, EmptyFile) {
  const TempDir dir;
  spit(dir / "file", "");
  const MappedFile file(dir / "file");
  EXPECT_EQ(file.size(), 0U);
  EXPECT_TRUE(file.bytes().empty());
  file.drop_pages(0, 100);
}

TEST(MappedFile, Faults) {
  const TempDir dir;
  const auto open = [](const std::filesystem::path& path) {
    return [path] { const MappedFile file(path); };
  };
  expect_file_error(open(dir / "none"), (dir / "none").string(), {"No such file"});
  expect_file_error(open(dir.path()), dir.path().string(), {"not a regular file"});
  expect_file_error(open("/dev/zero"), "/dev/zero", {"not a regular file"});
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_file_error(open(dir / "pipe"), (dir / "pipe").string(), {"not a regular file"});
}

// A process may have 65,530 mappings.
TEST(MappedFile, SmallFilesTakeNone) {
  const TempDir dir;
  const auto mappings = [&](const std::string& name) {
    std::ifstream maps("/proc/self/maps");
    int out = 0;
    for (std::string line; std::getline(maps, line);) out += line.ends_with(name) ? 1 : 0;
    return out;
  };
  spit(dir / "small", std::string(64 << 10, 's'));
  spit(dir / "large", std::string((64 << 10) + 1, 'l'));
  const MappedFile small(dir / "small"), large(dir / "large");
  EXPECT_EQ(mappings("/small"), 0);
  EXPECT_EQ(mappings("/large"), 1);
  EXPECT_EQ(small.bytes().back(), std::byte{'s'});
  EXPECT_EQ(large.bytes().back(), std::byte{'l'});
}

// SIGBUS would end the process without a word.
TEST(MappedFileDeathTest, TellsOfFilesThatBecomeShorter) {
  const TempDir dir;
  spit(dir / "file", std::string(1 << 20, 'x'));
  const auto shorten = [&] {
    tell_of_lost_pages("twell");
    const MappedFile file(dir / "file");
    std::filesystem::resize_file(dir / "file", 100);
    volatile auto last = file.bytes().back();
    static_cast<void>(last);
  };
  EXPECT_EXIT(shorten(), testing::ExitedWithCode(1),
              "^twell: error: .*/file: became shorter while it was read, .*\n$");
  // Not of our files.
  EXPECT_EXIT((tell_of_lost_pages("twell"), std::raise(SIGBUS), std::raise(SIGBUS)),
              testing::KilledBySignal(SIGBUS), "^$");
}

TEST(MappedFile, DroppedPagesAreNotResidentAndReadTheSame) {
  const TempDir dir;
  constexpr std::size_t kBytes = 64 << 20;
  spit(dir / "file", std::string(kBytes, 'x'));
  const MappedFile file(dir / "file");
  const auto sum = [&] {
    std::size_t out = 0;
    for (std::size_t i = 0; i < kBytes; i += 512)
      out += std::to_integer<std::size_t>(file.data()[i]);
    return out;
  };
  const std::size_t before = resident_file_bytes();
  const std::size_t first = sum();
  EXPECT_GT(resident_file_bytes(), before + kBytes / 2);
  file.drop_pages(1, kBytes - 1);
  EXPECT_LT(resident_file_bytes(), before + kBytes / 4);
  EXPECT_EQ(sum(), first);
  // Beyond the end, and so far that the sum overflows.
  file.drop_pages(kBytes / 2, ~std::size_t{0});
  file.drop_pages(~std::size_t{0}, 1);
  file.drop_pages(0, 0);
  EXPECT_EQ(sum(), first);
}

}  // namespace
}  // namespace twell::io
