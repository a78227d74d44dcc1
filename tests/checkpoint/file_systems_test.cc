// Reading and writing where the file system has less than a local disk.
#include <sys/resource.h>

#include "checkpoint/safetensors.h"
#include "files/atomic_file.h"
#include "files/mapped_file.h"
#include "files/note.h"
#include "tests/support/files.h"
#include "tests/support/lacking.h"
#include "tokenizer/token_shard.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
using test::Lacking;

const std::string kLong(1'000'000, 'x');

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.data()), file.size()};
}

TEST(FileSystems, FilesAreWrittenWithoutWhatIsMissing) {
  for (const char* what : {"flock", "lock daemon", "fsync of directories", "modes", "patience",
                           "long transfers", "patience,long transfers"}) {
    SCOPED_TRACE(what);
    const TempDir dir;
    spit(dir / "file", "old");
    const Lacking lacking(what);
    write_file_atomically(dir / "file", kLong);
    EXPECT_EQ(slurp(dir / "file"), kLong);
    EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
    EXPECT_EQ(read_file(dir / "file"), kLong);
    sync_directory(dir.path());
  }
}

TEST(FileSystems, ADiskThatFailsIsNotMissing) {
  const TempDir dir;
  spit(dir / "file", "old");
  const Lacking lacking("a sound disk");
  expect_file_error([&] { write_file_atomically(dir / "file", "new"); }, (dir / "file").string(),
                    {"Input/output error", "what was there before is kept"});
  EXPECT_EQ(slurp(dir / "file"), "old");
}

TEST(FileSystems, WithoutMappingsFilesAreRead) {
  for (const char* what : {"mmap", "mappings", "mmap,patience,long transfers"}) {
    SCOPED_TRACE(what);
    const TempDir dir;
    spit(dir / "file", kLong);
    std::vector<std::string> notes;
    set_note_sink([&](const std::string& line) { notes.push_back(line); });
    const Lacking lacking(what);
    const MappedFile file(dir / "file");
    EXPECT_EQ(text_of(file), kLong);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.data()) % 64, 0U);
    file.drop_pages(0, file.size());  // of a copy they would come back as zeros
    EXPECT_EQ(text_of(file), kLong);
    const MappedFile again(dir / "file");
    set_note_sink({});
    // Too many mappings are no matter of the file system.
    const std::size_t expected = std::string(what) == "mappings" ? 0 : 1;
    ASSERT_EQ(notes.size(), expected);
    for (const std::string& line : notes) {
      EXPECT_EQ(line.find(dir.path().string() + ": its file system"), 0U) << line;
    }
  }
}

TEST(FileSystems, TensorsAndTokensNeedNoMappings) {
  const TempDir dir;
  const std::vector<float> values(50'000, 2.5F);
  save_safetensors(dir / "t.safetensors", {{{"a", SafeDType::F32, {50'000}}, values.data()}});
  TokenShardWriter writer(dir / "t.tokens", 300, 1);
  writer.append(std::vector<std::int32_t>(100'000, 7));
  writer.commit();
  set_note_sink({});
  const Lacking lacking("mmap");
  const SafetensorsFile file(dir / "t.safetensors");
  EXPECT_EQ(std::memcmp(file.data(*file.find("a")), values.data(), 200'000), 0);
  std::vector<std::int32_t> ids(100'000);
  TokenShard(dir / "t.tokens").read(0, std::span(ids));
  EXPECT_EQ(ids, std::vector<std::int32_t>(100'000, 7));
}

TEST(FileSystems, FewDescriptorsAreEnough) {
  const TempDir dir;
  rlimit before = {};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const rlimit few = {24, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  std::vector<MappedFile> files;
  for (int i = 0; i < 100; ++i) {
    const fs::path path = dir / std::to_string(i);
    write_file_atomically(path, std::string(100'000, 'x'));
    files.emplace_back(path);
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(files.size(), 100U);
}

}  // namespace
}  // namespace twell::io
