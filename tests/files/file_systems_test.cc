// Runs where the file system has less than a local disk.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "files/atomic_file.h"
#include "files/note.h"
#include "files/run_directory.h"
#include "tests/support/lacking.h"
#include "tests/support/message_of.h"
#include "tests/support/scratch.h"

namespace twell::io {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::Lacking;
using test::message_of;
using test::Scratch;

std::vector<std::string> notes_of(const std::function<void()>& action) {
  std::vector<std::string> out;
  set_note_sink([&](const std::string& line) { out.push_back(line); });
  action();
  set_note_sink({});
  return out;
}

void add_step(RunDirectory& run, std::int64_t step) {
  run.add(step, 1, [](const fs::path& path) {
    AtomicDirectory directory(path);
    fs::create_directory(directory.temporary() / "trainer");
    write_file_atomically(directory.temporary() / "config.json", "{}");
    directory.commit();
  });
}

TEST(FileSystems, ARunNeedsNoLocks) {
  for (const char* what : {"flock", "lock daemon"}) {
    SCOPED_TRACE(what);
    const Scratch scratch;
    const Lacking lacking(what);
    const auto notes = notes_of([&] {
      RunDirectory run(scratch.path());
      add_step(run, 2);
      const RunDirectory second(scratch.path());  // which nothing can prevent
    });
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_TRUE(contains(notes[0], "has no locks")) << notes[0];
    EXPECT_TRUE(is_run_directory(scratch.path()));
  }
}

TEST(FileSystems, ARunNeedsNoLinks) {
  const Scratch scratch;
  const Lacking lacking("links,fsync of directories");
  const auto notes = notes_of([&] {
    RunDirectory run(scratch.path());
    add_step(run, 2);
    add_step(run, 4);
  });
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(contains(notes[0], "has no links")) << notes[0];
  EXPECT_EQ(latest_checkpoint(scratch.path()), scratch.path() / "step-00000004");
  EXPECT_FALSE(fs::exists(scratch.path() / "step-00000002"));
}

TEST(FileSystems, InterruptedCallsAreMadeAgain) {
  const Scratch scratch;
  const Lacking lacking("patience,long transfers");
  RunDirectory run(scratch.path());
  add_step(run, 2);
  EXPECT_TRUE(contains(message_of([&] { RunDirectory other(scratch.path()); }), "trains here"));
}

}  // namespace
}  // namespace twell::io
